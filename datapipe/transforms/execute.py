"""Execute cuts on the CPU: decoded pixels in, one row of a block out; and do the same to masks and boxes.

`cut` runs once per image in every decode thread, so it holds the GIL as briefly as possible: one call into torch's SIMD
resize (uint8, antialiased, fixed-point weights), which writes straight into the destination. Functions are thread-safe
if destinations differ. They use torch's intra-op threads as the caller has set them; set one per decode thread.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.masks import nearest_sources
from datapipe.codecs.probe import pixel_limit
from datapipe.errors import DecodeError
from datapipe.transforms.protocols import Cuts, Interpolation

Mask = NDArray[np.generic]  # (h, w) or (h, w, c): labels
Boxes = NDArray[np.float32]  # (k, 4) left, top, right, bottom in pixels; right and bottom exclusive

# The functions behind torch.nn.functional.interpolate(mode=..., antialias=True). Only these accept a destination,
# which saves a temporary image and a copy. A test checks that the results equal those of interpolate.
RESIZES: dict[Interpolation, Callable[..., torch.Tensor]] = {
    "bilinear": torch._C._nn._upsample_bilinear2d_aa,
    "bicubic": torch._C._nn._upsample_bicubic2d_aa,
}


class RowCut(NamedTuple):
    """One sample's row of a `Cuts` as plain numbers, since reading arrays one number at a time would cost more."""

    region: list[int]  # top, left, height, width
    size: list[int]  # height, width
    window: list[int]  # top, left, height, width
    flip: list[bool]  # vertically, horizontally
    fill: tuple[int, int, int]
    interpolation: Interpolation = "bilinear"


def row_cuts(cuts: Cuts) -> list[RowCut]:
    """Return the rows of `cuts`, in order."""
    columns = cuts.region.tolist(), cuts.size.tolist(), cuts.window.tolist(), cuts.flip.tolist()
    return list(map(_AS_ROW_CUT, zip(*columns, repeat(cuts.fill), repeat(cuts.interpolation), strict=False)))


_AS_ROW_CUT = functools.partial(tuple.__new__, RowCut)  # RowCut(*values), without executing Python code


class BlockRow(NamedTuple):
    """One row of a block as numpy and as torch see it."""

    pixels: NDArray[np.uint8]  # (h, w, 3), contiguous
    as_batch: torch.Tensor  # (1, 3, h, w), the same memory


def rows_of(block: torch.Tensor) -> list[BlockRow]:
    """Return the rows of a block, (n, h, w, 3) uint8 and contiguous. Scratch memory needs these views only once."""
    num, height, width, _ = block.shape
    image = 3 * height * width
    batches = block.as_strided((num, 1, 3, height, width), (image, image, 1, 3 * width, 3)).unbind()
    return list(map(BlockRow, block.numpy(), batches))


def cut(image: NDArray[np.uint8], how: RowCut, out: NDArray[np.uint8] | BlockRow) -> None:
    """Write the result of `how` for one sample to `out`.

    `image`: (h, w, 3) uint8, the pixels of `how.region` only; never changed, and copied first unless it is contiguous and
    writable. `out`: contiguous (h, w, 3) uint8 of the window's size, not overlapping `image`; a `BlockRow` saves two views.

    Raises DecodeError if the image does not have the region's size, ValueError if `out` does not have the window's.
    """
    (_, _, region_height, region_width), (height, width), window, (vertically, horizontally), fill, interpolation = how
    top, left, window_height, window_width = window
    pixels, as_batch = out if isinstance(out, BlockRow) else _row(out)
    if image.shape != (region_height, region_width, 3):
        raise DecodeError(f"decoding returned an array of shape {image.shape}; expected ({region_height}, {region_width}, 3)")
    if pixels.shape != (window_height, window_width, 3):
        raise ValueError(f"the destination must be ({window_height}, {window_width}, 3); it is {pixels.shape}")
    if height == region_height and width == region_width:
        _place(image, top, left, pixels, fill)
    elif top == 0 and left == 0 and height == window_height and width == window_width:
        RESIZES[interpolation](_as_batch(_usable(image)), how.size, False, None, None, out=as_batch)
    else:
        refuse_large((how,))
        resized = np.empty((height, width, 3), np.uint8)
        RESIZES[interpolation](_as_batch(_usable(image)), how.size, False, None, None, out=_as_batch(resized))
        _place(resized, top, left, pixels, fill)
    if horizontally or vertically:
        # torch.flip has a SIMD path for pixels of three bytes; a copy with negative strides takes 18 times as long.
        as_batch.copy_(torch.flip(as_batch, ((2, 3) if vertically else (3,)) if horizontally else (2,)))


def cut_through(image: NDArray[np.uint8], steps: Sequence[RowCut], out: NDArray[np.uint8] | BlockRow) -> None:
    """Do the same as `cut` for one sample's rows of a whole chain; `image` holds the pixels of the first row's region."""
    if len(steps) > 1:
        refuse_large(steps)
        for how, following in itertools.pairwise(steps):
            between = np.empty((how.window[2], how.window[3], 3), np.uint8)
            cut(image, how, between)
            top, left, height, width = following.region
            image = between[top : top + height, left : left + width]
    cut(image, steps[-1], out)


def _row(pixels: NDArray[np.uint8]) -> BlockRow:
    if not pixels.flags.c_contiguous:
        raise ValueError(f"the destination must be contiguous; it is {pixels.shape} with strides {pixels.strides}")
    return BlockRow(pixels, _as_batch(pixels))


def refuse_large(steps: Sequence[RowCut]) -> None:
    """Raise DecodeError if a step makes an image that exceeds the limit, for example from one of 1 x 10,000,000 pixels."""
    limit = pixel_limit()
    for how in steps:
        for height, width in (how.size, how.window[2:]):
            if height * width > limit:
                raise DecodeError(
                    f"transforms would make it {height} x {width} pixels, which exceeds the limit of {limit}; leave it out"
                )


def _usable(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the image in memory that torch accepts."""
    # numpy ignores the stride of a side of length 1 when it checks contiguity; torch rejects a negative one.
    return image if image.flags.carray and min(image.strides) > 0 else image.copy()


def _as_batch(image: NDArray[np.uint8]) -> torch.Tensor:
    """Return (h, w, 3) contiguous memory as a (1, 3, h, w) tensor, without a copy.

    The strides are explicit: for one image, permute and unsqueeze leave a batch stride that torch does not recognise as
    channels_last, and the resize then repacks its output (1.6 times as long). The view is made in numpy because each of
    torch's operators, views included, releases the GIL and has to acquire it again.
    """
    height, width, _ = image.shape
    strides = (3 * height * width, 1, 3 * width, 3)
    return torch.from_numpy(np.ndarray((1, 3, height, width), np.uint8, image, 0, strides))


def _place(image: NDArray[np.uint8], top: int, left: int, out: NDArray[np.uint8], fill: tuple[int, int, int]) -> None:
    """Copy the window at (top, left) of `image` to `out`, with `fill` beyond the image."""
    height, width = out.shape[:2]
    image_height, image_width = image.shape[:2]
    first_row, first_column = max(-top, 0), max(-left, 0)
    last_row, last_column = min(image_height - top, height), min(image_width - left, width)
    if last_row - first_row != height or last_column - first_column != width:
        if fill[0] == fill[1] == fill[2]:
            out.fill(fill[0])
        else:
            out.reshape(height, width * 3)[:] = np.tile(np.array(fill, np.uint8), width)
        if last_row <= first_row or last_column <= first_column:
            return
    out[first_row:last_row, first_column:last_column] = image[
        top + first_row : top + last_row, left + first_column : left + last_column
    ]


# -- masks and boxes -------------------------------------------------------------------------------

# Masks are resampled to the nearest neighbour, as in torchvision v2 (`datapipe.codecs.masks` documents the rule and its cost):
# labels are never mixed, so each row of the output shows one row of the mask, and each column one column. Boxes move with the
# pixels and are clipped to what remains of the image.


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


# -- where nothing is resampled, over a batch of images of one size ------------------------------------


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
    rows, shows_row, moves_rows = _places_along(cuts, 0, size[0])
    columns, shows_column, moves_columns = _places_along(cuts, 1, size[1])
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


def _places_along(cuts: Cuts, axis: int, extent: int) -> tuple[NDArray[np.int64], NDArray[np.bool_], bool]:
    """Return the (n, k) places along an axis of the image that a window shows, which of them exist, and whether any is moved."""
    length = int(cuts.window[0, 2 + axis])
    places = np.arange(length)
    flipped = np.where(cuts.flip[:, axis, None], places[::-1], places)
    in_region = cuts.window[:, axis, None] + flipped
    exists = (in_region >= 0) & (in_region < cuts.size[:, axis, None])
    sources = cuts.region[:, axis, None] + np.where(exists, in_region, 0)
    return sources, exists, length != extent or not exists.all() or bool((sources != places).any())
