"""Fold the beginning of a recorded chain into one cut: region to decode, size to resize to, window and flips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from datapipe.adapt.deferral.graph import JpegSource, Step
from datapipe.transforms.execute import RowCut
from datapipe.transforms.protocols import Interpolation

_INTERPOLATIONS: dict[int, Interpolation] = {
    int(Image.Resampling.BILINEAR): "bilinear",
    int(Image.Resampling.BICUBIC): "bicubic",
}
_LEFT_RIGHT, _TOP_BOTTOM = int(Image.Transpose.FLIP_LEFT_RIGHT), int(Image.Transpose.FLIP_TOP_BOTTOM)


class Front(NamedTuple):
    """The part of a chain that the engine executes."""

    cut: RowCut
    num_steps: int  # steps of the chain, from its beginning, that the cut replaces
    resampled: Interpolation | None


def fold(source: JpegSource, steps: Sequence[Step]) -> Front | None:
    """Return the longest beginning of a chain that is one cut of an RGB image; None if the engine cannot begin.

    The cut gives what the steps give: bit for bit if nothing is resampled, else within the resize's tolerance (a flip
    before a resize is carried out after it; the weights are symmetric).
    """
    top = left = 0
    width, height = source.size
    size: tuple[int, int] | None = None  # (width, height) to which the region is resized
    window = (0, 0, 0, 0)  # left, top, width, height within that
    interpolation: Interpolation = "bilinear"
    across = down = False
    mode, done = source.mode, 0
    for step in steps:
        now_width, now_height = (window[2], window[3]) if size is not None else (width, height)
        if step.name == "convert":
            if step.args[0] != "RGB":
                break
            mode = "RGB"
        elif step.name == "crop":
            x0, y0, x1, y1 = step.args[0]
            if x0 < 0 or y0 < 0 or x1 > now_width or y1 > now_height:
                break
            if across:
                x0, x1 = now_width - x1, now_width - x0
            if down:
                y0, y1 = now_height - y1, now_height - y0
            if size is None:
                left, top, width, height = left + x0, top + y0, x1 - x0, y1 - y0
            else:
                window = (window[0] + x0, window[1] + y0, x1 - x0, y1 - y0)
        elif step.name == "resize":
            (to_width, to_height), filter_ = step.args
            if (to_width, to_height) != (now_width, now_height):
                if size is not None or filter_ not in _INTERPOLATIONS:
                    break
                size, window, interpolation = (to_width, to_height), (0, 0, to_width, to_height), _INTERPOLATIONS[filter_]
        elif step.name == "transpose":
            if step.args[0] == _LEFT_RIGHT:
                across = not across
            elif step.args[0] == _TOP_BOTTOM:
                down = not down
            else:
                break
        elif step.name != "copy":
            break
        done += 1
    if mode != "RGB":
        return None
    resampled = None if size is None else interpolation
    to_width, to_height = size or (width, height)
    if size is None:
        window = (0, 0, width, height)
    cut = RowCut(
        region=[top, left, height, width],
        size=[to_height, to_width],
        window=[window[1], window[0], window[3], window[2]],
        flip=[down, across],
        fill=(0, 0, 0),
        interpolation=interpolation,
    )
    return Front(cut, done, resampled)
