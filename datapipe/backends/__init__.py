"""Backends that make batches: images on CPU threads, images by DALI, and the way to the device."""
