"""Single operations that each sample gets with probability `p`: those of RandAugment that have no geometry, and inversion.

All take uint8 images only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.order.draws import Draws
from datapipe.transforms.options import check_probability, check_uint8, is_number, refusal, source_repr
from datapipe.transforms.pixels import adjust, tone
from datapipe.transforms.pixels.planar import from_planes, groups, on_rows, to_planes
from datapipe.transforms.protocols import Locality, Params


class _Occasional:
    """Shared part of operations that each sample gets with probability `p`."""

    p: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability(self, self.p))

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return chosen (n,) bool."""
        return {"chosen": draws.uniform(operation, 1)[:, 0] < self.p}

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return check_uint8(self, dtype)


@dataclass(frozen=True, repr=False)
class RandomInvert(_Occasional):
    """Turn each value v into 255 - v with probability `p`."""

    p: float = 0.5

    locality: ClassVar[Locality] = Locality.POINT

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        on_rows(images, _chosen(params), torch.Tensor.bitwise_not_)
        return images


@dataclass(frozen=True, repr=False)
class RandomPosterize(_Occasional):
    """Keep only the `bits` (0 to 8) highest bits of each value with probability `p`."""

    bits: int
    p: float = 0.5

    locality: ClassVar[Locality] = Locality.POINT

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or isinstance(self.bits, bool) or not 0 <= self.bits <= 8:
            raise refusal(self, "bits", self.bits, "it must be an int from 0 to 8")
        super().__post_init__()

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        rows = _chosen(params)
        on_rows(images, rows, tone.posterize, np.full(len(rows), self.bits))
        return images


@dataclass(frozen=True, repr=False)
class RandomSolarize(_Occasional):
    """Turn each value v of at least `threshold` (0 to 255) into 255 - v with probability `p`."""

    threshold: float
    p: float = 0.5

    locality: ClassVar[Locality] = Locality.POINT

    def __post_init__(self) -> None:
        if not is_number(self.threshold) or not 0 <= self.threshold <= 255:
            raise refusal(self, "threshold", self.threshold, "it must be a number from 0 to 255")
        object.__setattr__(self, "threshold", float(self.threshold))
        super().__post_init__()

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        rows = _chosen(params)
        on_rows(images, rows, tone.solarize, np.full(len(rows), self.threshold))
        return images


@dataclass(frozen=True, repr=False)
class RandomAutocontrast(_Occasional):
    """Stretch each channel to 0..255 with probability `p`."""

    p: float = 0.5

    locality: ClassVar[Locality] = Locality.IMAGE

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        on_rows(images, _chosen(params), tone.autocontrast)
        return images


@dataclass(frozen=True, repr=False)
class RandomEqualize(_Occasional):
    """Equalize each channel's histogram with probability `p`."""

    p: float = 0.5

    locality: ClassVar[Locality] = Locality.IMAGE

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        on_rows(images, _chosen(params), tone.equalize)
        return images


@dataclass(frozen=True, repr=False)
class RandomAdjustSharpness(_Occasional):
    """Blur (`sharpness_factor` 0 is fully blurred) or sharpen (above 1) with probability `p`; a factor of 1 changes nothing."""

    sharpness_factor: float
    p: float = 0.5

    locality: ClassVar[Locality] = Locality.PLACE

    def __post_init__(self) -> None:
        if not is_number(self.sharpness_factor) or self.sharpness_factor < 0:
            raise refusal(self, "sharpness_factor", self.sharpness_factor, "it must be a number of at least 0")
        object.__setattr__(self, "sharpness_factor", float(self.sharpness_factor))
        super().__post_init__()

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        def sharpen(some: torch.Tensor, factor: torch.Tensor) -> None:
            planes = to_planes(some)
            adjust.adjust_sharpness(planes, factor, 255.0)
            from_planes(planes, some)

        for rows in groups(images):
            chosen = np.flatnonzero(params["chosen"][rows])
            on_rows(images[rows], chosen, sharpen, np.full(len(chosen), self.sharpness_factor))
        return images


def _chosen(params: Params) -> NDArray[np.int64]:
    return np.flatnonzero(params["chosen"])
