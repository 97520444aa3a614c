"""Colours and tones: ColorJitter, and single operations that each sample gets with probability `p`.

All but ColorJitter and RandomGrayscale take uint8 images only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from datapipe.order.draws import Draws
from datapipe.transforms.options import Range, check_probability, check_range, check_uint8, is_number, refusal, source_repr
from datapipe.transforms.pixels import adjust
from datapipe.transforms.pixels.planar import from_planes, groups, on_rows, to_planes, top_value
from datapipe.transforms.protocols import Locality, Params

_ADJUSTMENTS: tuple[Callable[[torch.Tensor, torch.Tensor, float], None], ...] = (
    adjust.adjust_brightness,
    adjust.adjust_contrast,
    adjust.adjust_saturation,
    adjust.adjust_hue,
)


@dataclass(frozen=True, repr=False)
class ColorJitter:
    """Change brightness, contrast, saturation and hue by random factors, in a random order per sample.

    >>> T.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)

    A number x stands for factors in [max(0, 1 - x), 1 + x], for hue in [-x, x] of the colour circle; a pair gives the bounds
    themselves. uint8 images, or floating point images within [0, 1].
    """

    brightness: Range | None = None
    contrast: Range | None = None
    saturation: Range | None = None
    hue: Range | None = None

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        for name, value in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation)):
            object.__setattr__(self, name, _check_factor(self, name, value))
        object.__setattr__(self, "hue", _check_factor(self, "hue", hue, middle=0.0, least=-0.5, most=0.5))

    __repr__ = source_repr

    @property
    def locality(self) -> Locality:
        return Locality.POINT if self.contrast is None else Locality.IMAGE

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return order (n, 4), permutations of 0 brightness, 1 contrast, 2 saturation, 3 hue, and factors (n, 4) for these."""
        uniform = draws.uniform(operation, 8)
        ranges = [(1.0, 1.0) if r is None else r for r in (self.brightness, self.contrast, self.saturation)]
        ranges.append(self.hue or (0.0, 0.0))
        low, high = np.array(ranges).T
        return {"order": uniform[:, :4].argsort(axis=1), "factors": low + (high - low) * uniform[:, 4:]}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        top = top_value(images.dtype)
        wanted = [r is not None for r in (self.brightness, self.contrast, self.saturation, self.hue)]
        if not any(wanted):
            return images
        for rows in groups(images):
            planes = to_planes(images[rows])
            order, factors = params["order"][rows], params["factors"][rows]
            for turn in range(4):
                for number, adjustment in enumerate(_ADJUSTMENTS):
                    if wanted[number]:
                        chosen = np.flatnonzero(order[:, turn] == number)
                        on_rows(planes, chosen, lambda some, f, adjust=adjustment: adjust(some, f, top), factors[chosen, number])
            from_planes(planes, images[rows])
        return images

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return dtype


class _Occasional:
    """Shared part of operations that each sample gets with probability `p`."""

    p: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability(self, self.p))

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return chosen (n,) bool."""
        return {"chosen": draws.uniform(operation, 1)[:, 0] < self.p}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        for rows in groups(images):
            on_rows(images[rows], np.flatnonzero(params["chosen"][rows]), self._change)
        return images

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return check_uint8(self, dtype)

    def _change(self, images: torch.Tensor) -> None:
        """Apply the operation to all of these (m, 3, h, w) images in place."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class RandomGrayscale(_Occasional):
    """Set all three channels to the luma (truncated for uint8) with probability `p`.

    >>> T.RandomGrayscale(p=0.2)
    """

    p: float = 0.1

    locality: ClassVar[Locality] = Locality.POINT

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return dtype

    def _change(self, images: torch.Tensor) -> None:
        images.copy_(adjust.gray(to_planes(images), top_value(images.dtype)))


@dataclass(frozen=True, repr=False)
class RandomInvert(_Occasional):
    """Turn each value v into 255 - v with probability `p`.

    >>> T.RandomInvert(p=0.5)
    """

    p: float = 0.5

    locality: ClassVar[Locality] = Locality.POINT

    def _change(self, images: torch.Tensor) -> None:
        images.bitwise_not_()


@dataclass(frozen=True, repr=False)
class RandomPosterize(_Occasional):
    """Keep only the `bits` (0 to 8) highest bits of each value with probability `p`.

    >>> T.RandomPosterize(4, p=0.5)
    """

    bits: int
    p: float = 0.5

    locality: ClassVar[Locality] = Locality.POINT

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or not 0 <= self.bits <= 8:
            raise refusal(self, "bits", self.bits, "it must be an int from 0 to 8")
        super().__post_init__()

    def _change(self, images: torch.Tensor) -> None:
        adjust.posterize(images, torch.tensor(self.bits))


@dataclass(frozen=True, repr=False)
class RandomSolarize(_Occasional):
    """Turn each value v of at least `threshold` (0 to 255) into 255 - v with probability `p`.

    >>> T.RandomSolarize(128, p=0.5)
    """

    threshold: float
    p: float = 0.5

    locality: ClassVar[Locality] = Locality.POINT

    def __post_init__(self) -> None:
        if not is_number(self.threshold) or not 0 <= self.threshold <= 255:
            raise refusal(self, "threshold", self.threshold, "it must be a number from 0 to 255")
        object.__setattr__(self, "threshold", float(self.threshold))
        super().__post_init__()

    def _change(self, images: torch.Tensor) -> None:
        adjust.solarize(images, torch.tensor(self.threshold))


@dataclass(frozen=True, repr=False)
class RandomAutocontrast(_Occasional):
    """Stretch each channel to 0..255 with probability `p`.

    >>> T.RandomAutocontrast(p=0.5)
    """

    p: float = 0.5

    locality: ClassVar[Locality] = Locality.IMAGE

    def _change(self, images: torch.Tensor) -> None:
        adjust.autocontrast(images)


@dataclass(frozen=True, repr=False)
class RandomEqualize(_Occasional):
    """Equalize each channel's histogram with probability `p`.

    >>> T.RandomEqualize(p=0.5)
    """

    p: float = 0.5

    locality: ClassVar[Locality] = Locality.IMAGE

    def _change(self, images: torch.Tensor) -> None:
        adjust.equalize(images)


@dataclass(frozen=True, repr=False)
class RandomAdjustSharpness(_Occasional):
    """Blur (`sharpness_factor` 0 is fully blurred) or sharpen (above 1) with probability `p`; a factor of 1 changes nothing.

    >>> T.RandomAdjustSharpness(2.0, p=0.5)
    """

    sharpness_factor: float
    p: float = 0.5

    locality: ClassVar[Locality] = Locality.PLACE

    def __post_init__(self) -> None:
        if not is_number(self.sharpness_factor) or self.sharpness_factor < 0:
            raise refusal(self, "sharpness_factor", self.sharpness_factor, "it must be a number of at least 0")
        object.__setattr__(self, "sharpness_factor", float(self.sharpness_factor))
        super().__post_init__()

    def _change(self, images: torch.Tensor) -> None:
        planes = to_planes(images)
        adjust.adjust_sharpness(planes, torch.tensor(self.sharpness_factor), 255.0)
        from_planes(planes, images)


def _check_factor(
    owner: object,
    argument: str,
    value: float | Sequence[float] | None,
    *,
    middle: float = 1.0,
    least: float = 0.0,
    most: float = math.inf,
) -> Range | None:
    """Return the bounds of a factor, of which `middle` changes nothing; None if it is always that."""
    if value is None:
        return None
    if is_number(value):
        if value < 0:  # type: ignore[operator]
            raise refusal(owner, argument, value, "a single number must be at least 0")
        value = (-value, value) if middle == 0 else (max(0.0, 1.0 - value), 1.0 + value)  # type: ignore[operator, assignment]
    bounds = check_range(owner, argument, value, least=least, most=most)
    return None if bounds == (middle, middle) else bounds
