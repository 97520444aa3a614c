"""Samples from their bytes in the source to their stored form: read, checked, resized, encoded."""
