"""Check that an image made by the engine equals Pillow's, within a tolerance for each kind of operation."""

from __future__ import annotations

import numpy as np
from PIL import Image

from datapipe.transforms.protocols import Interpolation

# Of 255. A bilinear resize differs by more than 1 in about one value of ten million, a bicubic one in one of a hundred thousand.
TOLERANCE: dict[Interpolation, int] = {"bilinear": 2, "bicubic": 5}
SHARE = 1e-4  # share of values that may differ by more than 1
COLOR_TOLERANCE = 17  # if colours are changed after a resize, which amplifies the resize's +-1
COLOR_SHARE = 1e-3  # share of values that may differ by more


def disagreement(ours: Image.Image, exact: Image.Image, *, resampled: Interpolation | None, colored: bool) -> str | None:
    """Return how the images differ more than allowed; None if they agree.

    `resampled`: the interpolation of the engine's resize; None if it did not resize, which requires equal bits. `colored`:
    whether Pillow changed colours after that.
    """
    if ours.mode != exact.mode or ours.size != exact.size:
        return f"it gives a {ours.mode} image of {ours.size}, Pillow a {exact.mode} image of {exact.size}"
    difference = np.abs(np.asarray(ours).astype(np.int16) - np.asarray(exact))
    largest = int(difference.max(initial=0))
    if resampled is None and colored:
        return None if largest <= 1 else f"values differ by up to {largest} of 255 though nothing is resampled"
    if resampled is None:
        return None if largest == 0 else f"values differ by up to {largest} of 255 though nothing is resampled"
    if colored:
        share = float((difference > COLOR_TOLERANCE).mean())
        return None if share <= COLOR_SHARE else f"{share:.3%} of the values differ by more than {COLOR_TOLERANCE} of 255"
    share = float((difference > 1).mean())
    if largest <= TOLERANCE[resampled] and share <= max(SHARE, 2 / difference.size):
        return None
    return f"values differ by up to {largest} of 255, {share:.3%} of them by more than 1"
