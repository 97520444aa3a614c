"""What a pixel of the output depends on: decides which geometry may be moved before a pixel operation."""

from __future__ import annotations

import enum


class Reach(enum.Enum):
    """Kinds of pixel operation, by what they look at. One that declares nothing counts as PLACE."""

    POINT = "point"  # the pixel itself: commutes with flips and with crops
    IMAGE = "image"  # the pixel and values summed over the image: commutes with flips of uint8 images
    PLACE = "place"  # where the pixel lies, or its neighbours: commutes with nothing
