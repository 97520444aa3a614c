"""Execute cuts that resample nothing, over a batch of images of one size at once, on the device where these are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.transforms.protocols import Cuts


class Windows(NamedTuple):
    """The row and column numbers of the pixels that windows of one size show, a window for each of n images."""

    rows: torch.Tensor  # (n, h) int64
    columns: torch.Tensor  # (n, w) int64
    shows_row: torch.Tensor | None  # (n, h) bool: False where the window reaches beyond the image; None: nowhere
    shows_column: torch.Tensor | None  # (n, w) bool; None together with `shows_row`
    fill: torch.Tensor | None  # (3,) uint8, RGB, beyond the image


def windows_of(cuts: Cuts, size: tuple[int, int]) -> Windows | None:
    """Return the windows, in host memory, of cuts of images of `size` (height, width); None if all show the image as it is.

    The cuts must resample nothing, and have windows of one size.
    """
    rows, shows_row, moves_rows = _sources(cuts, 0, size[0])
    columns, shows_column, moves_columns = _sources(cuts, 1, size[1])
    if not (moves_rows or moves_columns):
        return None
    if shows_row.all() and shows_column.all():
        return Windows(torch.from_numpy(rows), torch.from_numpy(columns), None, None, None)
    masks = torch.from_numpy(shows_row), torch.from_numpy(shows_column)
    return Windows(torch.from_numpy(rows), torch.from_numpy(columns), *masks, torch.tensor(cuts.fill, dtype=torch.uint8))


def look_through(windows: Windows, images: torch.Tensor) -> torch.Tensor:
    """Return (n, h, w, 3) uint8: what the windows show of `images` (n, height, width, 3), on the device where all these are."""
    number = torch.arange(len(images), device=images.device)[:, None, None]
    shown = images[number, windows.rows[:, :, None], windows.columns[:, None, :]]
    if windows.shows_row is None or windows.shows_column is None or windows.fill is None:
        return shown
    is_inside = windows.shows_row[:, :, None] & windows.shows_column[:, None, :]
    return torch.where(is_inside[..., None], shown, windows.fill)


def _sources(cuts: Cuts, axis: int, extent: int) -> tuple[NDArray[np.int64], NDArray[np.bool_], bool]:
    """Return the (n, k) places along an axis of the image that a window shows, which of them exist, and whether any is moved."""
    length = int(cuts.window[0, 2 + axis])
    places = np.arange(length)
    flipped = np.where(cuts.flip[:, axis, None], places[::-1], places)
    in_region = cuts.window[:, axis, None] + flipped
    exists = (in_region >= 0) & (in_region < cuts.size[:, axis, None])
    sources = cuts.region[:, axis, None] + np.where(exists, in_region, 0)
    return sources, exists, length != extent or not exists.all() or bool((sources != places).any())
