"""Turn images as their EXIF says: cameras store what they see, and note how they were held.

(CIPA DC-008, Exif 2.32, tag 0x0112; Pillow, `ImageOps.exif_transpose`)
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.pillow import opened
from datapipe.codecs.probe import ImageHeader

_TAG = 0x0112
UPRIGHT = 1
_IN_PNG = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")  # without these, Pillow decodes it all to find none
_SIDEWAYS = frozenset((5, 6, 7, 8))  # those that swap width and height


def orientation_of(data: bytes, header: ImageHeader) -> int:
    """Return the orientation of an image, 1 to 8; 1 where it says none. Raises DecodeError if it does not open."""
    if header.encoding == "npy" or (header.encoding == "png" and not any(one in data for one in _IN_PNG)):
        return UPRIGHT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of EXIF that is damaged
        with opened(data) as image:
            found = image.getexif().get(_TAG, UPRIGHT)
    return found if found in range(1, 9) else UPRIGHT


def turned(data: bytes, header: ImageHeader) -> ImageHeader:
    """Return the header of an image once it is turned as its EXIF says. Raises DecodeError if it does not open."""
    if header.encoding == "jpeg" and b"Exif" not in data and b"tiff:Orientation" not in data:
        return header  # found out in microseconds
    orientation = orientation_of(data, header)
    height, width = upright_size(header.height, header.width, orientation)
    return header._replace(height=height, width=width, orientation=orientation)


def upright_size(height: int, width: int, orientation: int) -> tuple[int, int]:
    """Return (height, width) of an image of that size, once it is turned."""
    return (width, height) if orientation in _SIDEWAYS else (height, width)


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return (h, w, 3) pixels turned, as a view."""
    if orientation in _SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
