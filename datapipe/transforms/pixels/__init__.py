"""Pixel operations on blocks of images, and batch operations."""
