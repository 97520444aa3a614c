"""Crops, resizes, paddings and flips, with the names, defaults and meaning of torchvision.transforms.v2.

Each is arithmetic on boxes (`datapipe.transforms.cuts`) and touches no pixels. Random ones draw per sample, in
torchvision's order and with its rounding. Sizes are in pixels, (height, width). Arguments are checked at construction;
unavailable options raise OptionError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms import cuts as chain
from datapipe.transforms.options import (
    Fill,
    check_constant_padding,
    check_fill,
    check_interpolation,
    check_probability,
    check_size,
    is_count,
    refusal,
    source_repr,
)
from datapipe.transforms.protocols import Cuts, Interpolation
from datapipe.transforms.random_resized_crop import RandomResizedCrop

__all__ = ["CenterCrop", "Pad", "RandomCrop", "RandomHorizontalFlip", "RandomResizedCrop", "RandomVerticalFlip", "Resize"]

Size = tuple[int, int]


@dataclass(frozen=True, repr=False)
class Resize:
    """Resize to (height, width), or so that the shorter side is `size` and the aspect ratio is kept.

    >>> T.Resize(256)

    With an int, `max_size` limits the longer side; with None the longer side becomes `max_size`. Lengths are truncated as
    in torchvision; where that gives 0 (and torchvision fails) they are 1.
    """

    size: int | Size | None
    interpolation: Interpolation = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: object = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
    ) -> None:
        put = object.__setattr__
        if isinstance(size, Sequence) and len(size) == 1:
            size = size[0]
        put(self, "size", int(size) if is_count(size) else None if size is None else check_size(self, size))  # type: ignore
        put(self, "max_size", max_size)
        if max_size is None:
            if size is None:
                raise refusal(self, "max_size", None, "it must be a positive int when size is None")
        elif not is_count(max_size):
            raise refusal(self, "max_size", max_size, "it must be a positive int or None")
        elif isinstance(self.size, tuple):
            raise refusal(self, "max_size", max_size, "it works only with a single int as size; drop it")
        elif self.size is not None and max_size <= self.size:
            raise refusal(self, "max_size", max_size, f"it must be greater than the shorter side's {self.size}")
        put(self, "interpolation", check_interpolation(self, interpolation, antialias))
        put(self, "antialias", True)

    __repr__ = source_repr

    def output_size(self, size: Size | None, /) -> Size | None:
        if isinstance(self.size, tuple):
            return self.size
        if size is None:
            return None
        height, width = self.sizes(np.array([size], np.int64))[0].tolist()
        return (height, width)

    def sizes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the (n, 2) sizes to which images of these (n, 2) sizes are resized."""
        if isinstance(self.size, tuple):
            return chain.full_window(len(sizes), *self.size)[:, 2:]
        short, long = sizes.min(axis=1), sizes.max(axis=1)
        if self.size is None:
            assert self.max_size is not None
            new_long = np.full(len(sizes), self.max_size, np.int64)
            new_short = (self.max_size * short / long).astype(np.int64)
        else:
            new_short = np.full(len(sizes), self.size, np.int64)
            new_long = (self.size * long / short).astype(np.int64)
            if self.max_size is not None:
                over = new_long > self.max_size
                new_short = np.where(over, (self.max_size * self.size / new_long).astype(np.int64), new_short)
                new_long = np.where(over, self.max_size, new_long)
        upright = (sizes[:, 1] <= sizes[:, 0])[:, None]
        new = np.where(upright, np.stack([new_long, new_short], axis=1), np.stack([new_short, new_long], axis=1))
        return np.maximum(new, 1)

    def fold(self, cuts: list[Cuts], draws: Draws, operation: int, /) -> list[Cuts]:
        return chain.resize(cuts, self.sizes(chain.output_sizes(cuts)), self.interpolation)


@dataclass(frozen=True, repr=False)
class CenterCrop:
    """Cut `size` out of the centre; a smaller image is padded with `fill` on both sides.

    >>> T.CenterCrop(224)
    """

    size: Size = field(metadata={"square": True})
    fill: Fill = (0, 0, 0)

    def __init__(self, size: int | Sequence[int], *, fill: float | Sequence[float] | None = 0) -> None:
        object.__setattr__(self, "size", check_size(self, size))
        object.__setattr__(self, "fill", check_fill(self, fill))

    __repr__ = source_repr

    def output_size(self, size: Size | None, /) -> Size | None:
        return self.size

    def fold(self, cuts: list[Cuts], draws: Draws, operation: int, /) -> list[Cuts]:
        sizes = chain.output_sizes(cuts)
        box = chain.full_window(len(sizes), *self.size).copy()
        excess = sizes - box[:, 2:]
        # torchvision rounds the anchor half to even, and puts the smaller half of a padding first.
        box[:, :2] = np.where(excess >= 0, np.rint(excess / 2), -(-excess // 2))
        return chain.crop(cuts, box, fill=self.fill)


@dataclass(frozen=True, repr=False)
class Pad:
    """Add a border: `padding` is one int, (left and right, top and bottom), or (left, top, right, bottom).

    >>> T.Pad(4)
    """

    padding: tuple[int, int, int, int]  # left, top, right, bottom
    fill: Fill = (0, 0, 0)
    padding_mode: str = "constant"

    def __init__(
        self, padding: int | Sequence[int], fill: float | Sequence[float] | None = 0, padding_mode: str = "constant"
    ) -> None:
        object.__setattr__(self, "padding", _check_padding(self, padding))
        object.__setattr__(self, "fill", check_fill(self, fill))
        object.__setattr__(self, "padding_mode", check_constant_padding(self, padding_mode))

    __repr__ = source_repr

    def output_size(self, size: Size | None, /) -> Size | None:
        left, top, right, bottom = self.padding
        return None if size is None else (size[0] + top + bottom, size[1] + left + right)

    def fold(self, cuts: list[Cuts], draws: Draws, operation: int, /) -> list[Cuts]:
        left, top, right, bottom = self.padding
        box = np.empty((len(cuts[-1]), 4), np.int64)
        box[:, :2] = (-top, -left)
        box[:, 2:] = chain.output_sizes(cuts) + np.array([top + bottom, left + right])
        return chain.crop(cuts, box, fill=self.fill)


@dataclass(frozen=True, repr=False)
class RandomCrop:
    """Cut out `size` at a random position, after padding by `padding` and, with `pad_if_needed`, up to the crop's size.

    >>> T.RandomCrop(32, padding=4)

    `fold` raises OptionError for an image that is smaller than the crop.
    """

    size: Size = field(metadata={"square": True})
    padding: tuple[int, int, int, int] | None = None  # left, top, right, bottom
    pad_if_needed: bool = False
    fill: Fill = (0, 0, 0)
    padding_mode: str = "constant"

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] | None = 0,
        padding_mode: str = "constant",
    ) -> None:
        put = object.__setattr__
        put(self, "size", check_size(self, size))
        put(self, "padding", None if padding is None else _check_padding(self, padding))
        put(self, "pad_if_needed", bool(pad_if_needed))
        put(self, "fill", check_fill(self, fill))
        put(self, "padding_mode", check_constant_padding(self, padding_mode))

    __repr__ = source_repr

    def output_size(self, size: Size | None, /) -> Size | None:
        return self.size

    def fold(self, cuts: list[Cuts], draws: Draws, operation: int, /) -> list[Cuts]:
        sizes = chain.output_sizes(cuts)
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        before = np.array([top, left], np.int64)
        padded = sizes + np.array([top + bottom, left + right])
        lacking = np.maximum(np.array(self.size, np.int64) - padded, 0)
        if lacking.any():
            if not self.pad_if_needed:
                height, width = padded[lacking.any(axis=1)][0].tolist()
                raise OptionError(
                    f"{self!r}: an image of {height} x {width} pixels (height x width, padding included) is smaller than "
                    "the crop; pass pad_if_needed=True, or put a Resize before it"
                )
            before, padded = before + lacking, padded + 2 * lacking
        box = chain.full_window(len(sizes), *self.size).copy()
        box[:, :2] = draws.uniform(operation, 2) * (padded - box[:, 2:] + 1)
        box[:, :2] -= before
        return chain.crop(cuts, box, fill=self.fill)


class _RandomFlip:
    """Shared part of flips, which each sample gets with probability `p`."""

    p: float
    axis: ClassVar[int]  # 0: top and bottom, 1: left and right

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability(self, self.p))

    __repr__ = source_repr

    def output_size(self, size: Size | None, /) -> Size | None:
        return size

    def fold(self, cuts: list[Cuts], draws: Draws, operation: int, /) -> list[Cuts]:
        flags = np.zeros((len(draws), 2), np.bool_)
        flags[:, self.axis] = draws.uniform(operation, 1)[:, 0] < self.p
        return chain.flip(cuts, flags)


@dataclass(frozen=True, repr=False)
class RandomHorizontalFlip(_RandomFlip):
    """Mirror left and right with probability `p`.

    >>> T.RandomHorizontalFlip(p=0.5)
    """

    p: float = 0.5

    axis: ClassVar[int] = 1


@dataclass(frozen=True, repr=False)
class RandomVerticalFlip(_RandomFlip):
    """Mirror top and bottom with probability `p`.

    >>> T.RandomVerticalFlip(p=0.5)
    """

    p: float = 0.5

    axis: ClassVar[int] = 0


RESAMPLES_NOTHING = (CenterCrop, Pad, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip)  # these only move pixels
DRAWS_NOTHING = (Resize, CenterCrop, Pad)  # a sample gets the same cut in every epoch


def _check_padding(owner: object, padding: object) -> tuple[int, int, int, int]:
    given = [padding] if isinstance(padding, int) else padding
    if isinstance(given, Sequence) and len(given) in (1, 2, 4) and all(is_count(p) or p == 0 for p in given):
        left, top, right, bottom = [int(p) for p in given] * (4 // len(given))
        return (left, top, right, bottom)
    expected = "it must be an int of at least 0, or two of them (x, y), or four (left, top, right, bottom)"
    raise refusal(owner, "padding", padding, expected)
