"""Decode bytes into values: image headers and pixels, NumPy arrays, masks, typed fields."""
