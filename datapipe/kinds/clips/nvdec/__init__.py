"""Frames decoded by the video engines of an NVIDIA GPU (NVDEC)."""
