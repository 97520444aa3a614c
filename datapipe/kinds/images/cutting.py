"""Decode an image at the scale at which libjpeg makes it smaller, and cut it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.decode import Decoder, SimpleJpegDecoder
from datapipe.codecs.orientation import UPRIGHT, upright, upright_size
from datapipe.codecs.probe import ImageHeader
from datapipe.transforms.execute import BlockRow, RowCut, cut_through

# Decodes an image and writes what the steps make of it, see `cut_through`. Raises DecodeError.
Cut = Callable[[bytes, ImageHeader, Sequence[RowCut], NDArray[np.uint8] | BlockRow], None]

_SCALES = (8, 4, 2)  # at which libjpeg saves time
_LEAST_SHARE = 0.4  # of an image, that a region must be for the whole at a scale to cost less than the region in full


class ScaledCut:
    """A `Cut` that decodes JPEGs that become less than half as large at a half, a quarter or an eighth of their size.

    They are then twice as large as what they become, or larger. `decoder` decodes the others. For one thread.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._scaled = SimpleJpegDecoder()

    def __call__(self, data: bytes, header: ImageHeader, steps: Sequence[RowCut], out: NDArray[np.uint8] | BlockRow) -> None:
        first = steps[0]
        scale = _scale(first, header)
        if scale == 1:
            cut_through(self._decoder(data, header, first.region), steps, out)
            return
        pixels = self._scaled.reduced(data, header, (-(-header.height // scale), -(-header.width // scale)))
        top, bottom = _ends(first.region[0], first.region[2], header.height, pixels.shape[0])
        left, right = _ends(first.region[1], first.region[3], header.width, pixels.shape[1])
        of_scale = first._replace(region=[top, left, bottom - top, right - left])
        cut_through(pixels[top:bottom, left:right], [of_scale, *steps[1:]], out)


class UprightCut:
    """A `Cut` that turns images whose header says so, decoded whole; `cut` does the others. For one thread."""

    def __init__(self, cut: Cut, decoder: Decoder) -> None:
        self._cut, self._decoder = cut, decoder

    def __call__(self, data: bytes, header: ImageHeader, steps: Sequence[RowCut], out: NDArray[np.uint8] | BlockRow) -> None:
        if header.orientation == UPRIGHT:
            self._cut(data, header, steps, out)
            return
        height, width = upright_size(header.height, header.width, header.orientation)  # which turns the sides back
        stored = header._replace(height=height, width=width, orientation=UPRIGHT)
        pixels = upright(self._decoder(data, stored, [0, 0, height, width]), header.orientation)
        top, left, height, width = steps[0].region
        region = np.ascontiguousarray(pixels[top : top + height, left : left + width])
        cut_through(region, [steps[0]._replace(region=[0, 0, height, width]), *steps[1:]], out)


def _scale(how: RowCut, header: ImageHeader) -> int:
    """Return by how much sides of the image are divided; 1: it is decoded in full."""
    _, _, height, width = how.region
    if height * width < _LEAST_SHARE * header.height * header.width:
        return 1
    fits = (scale for scale in _SCALES if min(height / how.size[0], width / how.size[1]) >= 2 * scale)
    return next(fits, 1)


def _ends(start: int, length: int, before: int, after: int) -> tuple[int, int]:
    """Return between which of `after` pixels of a side those lie that were `length` of `before`."""
    first = round(start * after / before)
    return first, max(first + 1, round((start + length) * after / before))
