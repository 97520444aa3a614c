"""Dependence of an output pixel on the input, which decides the geometry that may move before a pixel operation."""

from __future__ import annotations

import enum


class Locality(enum.Enum):
    """Kinds of pixel operation, by the pixels they read. One that declares nothing counts as PLACE."""

    POINT = "point"  # the pixel itself: commutes with flips and with crops
    IMAGE = "image"  # the pixel and values summed over the image: commutes with flips of uint8 images
    PLACE = "place"  # the pixel's position or its neighbours: commutes with nothing
