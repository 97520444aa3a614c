"""Apply the cuts of an image to its masks and boxes.

A `Cuts` treats each axis separately: crop, resample, window, flip. For a mask, whose values are labels and are never
mixed, that gives one source row per output row and one source column per output column; for boxes, an affine map per
axis. The meaning is that of torchvision v2: masks are resampled to the nearest neighbour (`datapipe.codecs.masks` documents the
rule and its cost), and boxes move with the pixels and are clipped to what remains of the image. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.masks import nearest_sources
from datapipe.core.errors import DecodeError
from datapipe.transforms.execute import RowCut

Mask = NDArray[np.generic]  # (h, w) or (h, w, c): labels
Boxes = NDArray[np.float32]  # (k, 4) left, top, right, bottom in pixels; right and bottom exclusive


def cut_mask(mask: Mask, steps: Sequence[RowCut], *, fill: int = 0) -> Mask:
    """Apply a chain of cuts to the mask of its image: (height, width) of the last window, the same dtype.

    `steps`: one sample's row of every Cuts of the chain. `fill`: the label beyond the image. Raises DecodeError if the mask is
    smaller than the extent of the first region, so cannot belong to that image.
    """
    top, left, height, width = steps[0].region
    if mask.shape[0] < top + height or mask.shape[1] < left + width:
        raise DecodeError(
            f"a mask of {mask.shape[0]} x {mask.shape[1]} pixels for an image of {top + height} x {left + width} or more"
        )
    rows, columns = _sources(steps, 0), _sources(steps, 1)
    made = mask[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)]
    made[rows < 0] = fill
    made[:, columns < 0] = fill
    return made


def move_boxes(boxes: Boxes, steps: Sequence[RowCut]) -> Boxes:
    """Return the boxes after the cuts: (k, 4), clipped to the last window; a box that is cut away has no area."""
    moved = boxes.astype(np.float32, copy=True).reshape(-1, 4)
    for axis in (0, 1):
        ends = moved[:, 1 - axis :: 2]  # top and bottom, or left and right
        for how in steps:
            ends -= how.region[axis]
            ends *= how.size[axis] / how.region[axis + 2]
            ends -= how.window[axis]
            if how.flip[axis]:
                ends[:] = how.window[axis + 2] - ends[:, ::-1]
            np.clip(ends, 0, how.window[axis + 2], out=ends)
    return moved


def _sources(steps: Sequence[RowCut], axis: int) -> NDArray[np.int64]:
    """Return, for each row (axis 0) or column (axis 1) of the output, the one of the whole image that it shows; -1: none."""
    first = steps[0].region[axis]
    sources = np.arange(first, first + steps[0].region[axis + 2], dtype=np.int64)
    for number, how in enumerate(steps):
        at, length = how.region[axis], how.region[axis + 2]
        if number:
            sources = sources[at : at + length]
        size = how.size[axis]
        if size != length:
            sources = sources[nearest_sources(length, size)]
        window = np.arange(how.window[axis], how.window[axis] + how.window[axis + 2])
        inside = (window >= 0) & (window < size)
        sources = np.where(inside, sources[np.clip(window, 0, size - 1)], -1)
        if how.flip[axis]:
            sources = sources[::-1]
    return sources
