"""Clips of videos: windows of frames that share their decoding."""
