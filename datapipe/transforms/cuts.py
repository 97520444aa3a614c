"""Arithmetic on `Cuts`: merge a crop, a resize or a flip into the steps already planned.

A list of `Cuts` is a chain: the output of each is the input of the next. Each function here returns a chain that
gives, bit for bit, the pixels of the given chain followed by the new step. The step merges into the last cut if that
is exact; otherwise it becomes one more cut. Boxes are (top, left, height, width). All functions are pure; the arrays in
`Cuts` are shared and never written.

One invariant helps decoders that can decode only a region: where nothing is resampled, the region is no larger than
the part of the image that the window shows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from datapipe.transforms.protocols import Cuts, Interpolation

Ints = NDArray[np.int64]


def whole(sizes: Ints) -> list[Cuts]:
    """Return the chain that leaves images of these (n, 2) sizes (height, width, in pixels) unchanged."""
    region = np.zeros((len(sizes), 4), np.int64)
    region[:, 2:] = sizes
    return [Cuts(region=region, size=region[:, 2:], window=region, flip=unflipped(len(sizes)))]


def output_sizes(cuts: list[Cuts]) -> Ints:
    """Return the (n, 2) heights and widths of the chain's output."""
    return cuts[-1].window[:, 2:]


@lru_cache(maxsize=64)
def unflipped(num_samples: int) -> NDArray[np.bool_]:
    """Return (n, 2) False; shared, read-only."""
    flags = np.zeros((num_samples, 2), np.bool_)
    flags.flags.writeable = False
    return flags


@lru_cache(maxsize=256)
def full_window(num_samples: int, height: int, width: int) -> Ints:
    """Return (n, 4) windows (0, 0, height, width); shared, read-only. Columns 2: are the sizes."""
    window = np.tile(np.array([0, 0, height, width], np.int64), (num_samples, 1))
    window.flags.writeable = False
    return window


def crop(cuts: list[Cuts], box: Ints, *, fill: tuple[int, int, int] = (0, 0, 0)) -> list[Cuts]:
    """Cut `box` (n, 4) out of the chain's output, with `fill` where the box reaches outside."""
    last = cuts[-1]
    inside = _lies_inside(box, last.window[:, 2:])
    window = _unflip(box, last)
    if inside and last.window is last.region:  # an untouched image
        return [*cuts[:-1], Cuts(window, window[:, 2:], _at_origin(window[:, 2:]), last.flip, last.fill)]
    window = window.copy()
    window[:, :2] += last.window[:, :2]
    if not inside:
        shows_fill = not _lies_inside(last.window, last.size)
        if (shows_fill and fill != last.fill) or _uncovers(window, last):
            region = _at_origin(last.window[:, 2:])
            return [*cuts, _shrunk(Cuts(region, region[:, 2:], box, unflipped(len(box)), fill))]
    else:
        fill = last.fill
    return [*cuts[:-1], _shrunk(Cuts(last.region, last.size, window, last.flip, fill, last.interpolation))]


def resize(cuts: list[Cuts], size: Ints, interpolation: Interpolation = "bilinear") -> list[Cuts]:
    """Resize the chain's output to `size` (n, 2), antialiased.

    An earlier flip is executed afterwards, which is exact: the weights of both interpolations are symmetric.
    """
    last = cuts[-1]
    if not _is_resampled(last) and _lies_inside(last.window, last.size):
        region = last.window.copy()
        region[:, :2] += last.region[:, :2]
        return [*cuts[:-1], Cuts(region, size, _at_origin(size), last.flip, last.fill, interpolation)]
    if np.array_equal(size, last.window[:, 2:]):
        return cuts
    region = _at_origin(last.window[:, 2:])
    return [*cuts, Cuts(region, size, _at_origin(size), unflipped(len(size)), interpolation=interpolation)]


def crop_and_resize(cuts: list[Cuts], box: Ints, size: tuple[int, int], interpolation: Interpolation = "bilinear") -> list[Cuts]:
    """Cut `box` (n, 4), which lies inside the chain's output, and resize it to (height, width)."""
    last = cuts[-1]
    window = full_window(len(box), *size)
    if last.window is last.region:
        # The usual case, an untouched image, in few numpy calls: this runs once per block of a few images.
        return [*cuts[:-1], Cuts(_unflip(box, last), window[:, 2:], window, last.flip, last.fill, interpolation)]
    return resize(crop(cuts, box), window[:, 2:], interpolation)


def flip(cuts: list[Cuts], flags: NDArray[np.bool_]) -> list[Cuts]:
    """Flip vertically where flags[:, 0] is set, horizontally where flags[:, 1] is set."""
    last = cuts[-1]
    return [*cuts[:-1], Cuts(last.region, last.size, last.window, last.flip ^ flags, last.fill, last.interpolation)]


def _is_resampled(cuts: Cuts) -> bool:
    if cuts.size.base is cuts.region:  # this module made it as a view of the region's columns
        return False
    return not np.array_equal(cuts.size, cuts.region[:, 2:])


def _lies_inside(box: Ints, size: Ints) -> bool:
    return bool((box[:, :2] >= 0).all() and (box[:, :2] + box[:, 2:] <= size).all())


def _at_origin(size: Ints) -> Ints:
    box = np.zeros((len(size), 4), np.int64)
    box[:, 2:] = size
    return box


def _unflip(box: Ints, cuts: Cuts) -> Ints:
    """Return the box of the unflipped window that shows what `box` shows of the flipped one."""
    if not cuts.flip.any():
        return box
    mirrored = cuts.window[:, 2:] - box[:, :2] - box[:, 2:]
    return np.concatenate([np.where(cuts.flip, mirrored, box[:, :2]), box[:, 2:]], axis=1)


def _uncovers(window: Ints, last: Cuts) -> bool:
    """Return True if `window` would show pixels of the resized region that the last window had cut away."""
    top_left, bottom_right = _clipped(window, last.size)
    shown = (bottom_right > top_left).all(axis=1, keepdims=True)
    within = (top_left >= last.window[:, :2]) & (bottom_right <= last.window[:, :2] + last.window[:, 2:])
    return bool((shown & ~within).any())


def _clipped(window: Ints, size: Ints) -> tuple[Ints, Ints]:
    return np.clip(window[:, :2], 0, size), np.clip(window[:, :2] + window[:, 2:], 0, size)


def _shrunk(cuts: Cuts) -> Cuts:
    """Shrink the region to what the window shows of it, where nothing is resampled."""
    plain = (cuts.size == cuts.region[:, 2:]).all(axis=1, keepdims=True)
    if not plain.any():
        return cuts
    top_left, bottom_right = _clipped(cuts.window, cuts.size)
    # A window that shows only fill still needs a region: one pixel, which it does not show.
    top_left = np.minimum(top_left, cuts.size - 1)
    bottom_right = np.maximum(bottom_right, top_left + 1)
    region, window = cuts.region.copy(), cuts.window.copy()
    region[:, :2] += np.where(plain, top_left, 0)
    region[:, 2:] = np.where(plain, bottom_right - top_left, cuts.region[:, 2:])
    window[:, :2] -= np.where(plain, top_left, 0)
    size = region[:, 2:] if plain.all() else np.where(plain, region[:, 2:], cuts.size)
    return Cuts(region, size, window, cuts.flip, cuts.fill, cuts.interpolation)
