"""ToDtype and Normalize, and the single multiply-add that replaces both.

Blocks are NHWC in memory. Per-channel factors are tiled to a whole row of width * 3, so that the inner dimension is long:
over three channels alone torch's loops take nine times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch

from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.options import is_number, refusal, source_repr
from datapipe.transforms.protocols import Locality, Params

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Triple = tuple[float, float, float]
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NOTHING: Params = {}
_scratch = threading.local()


@dataclass(frozen=True, repr=False)
class ToDtype:
    """Convert to `dtype`: uint8, float16, bfloat16, float32 or float64.

    >>> T.ToDtype(torch.float32, scale=True)

    With `scale`, uint8's 0..255 becomes 0..1 and back (back is x * 255.999, truncated, as in torchvision). Without it, values
    are kept (and truncated).
    """

    dtype: torch.dtype
    scale: bool = False

    locality: ClassVar[Locality] = Locality.POINT

    def __post_init__(self) -> None:
        if self.dtype not in (torch.uint8, *_FLOATS):
            raise refusal(self, "dtype", self.dtype, "it must be torch.uint8, float16, bfloat16, float32 or float64")

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        return _NOTHING

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        if images.dtype == self.dtype:
            return images
        if images.dtype == torch.uint8:
            return scale_and_shift(self, None).apply(images, params)
        if self.scale and self.dtype == torch.uint8:
            images = images.mul(255 + 1.0 - 1e-3)
        return images.to(self.dtype)

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return self.dtype


@dataclass(frozen=True, repr=False)
class Normalize:
    """Compute (x - mean) / std per channel, for floating point images. `inplace` has no effect.

    >>> T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)
    """

    mean: Triple
    std: Triple
    inplace: bool = False

    locality: ClassVar[Locality] = Locality.POINT

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        object.__setattr__(self, "mean", _check_triple(self, "mean", mean))
        object.__setattr__(self, "std", _check_triple(self, "std", std))
        object.__setattr__(self, "inplace", inplace)
        if 0 in self.std:
            raise refusal(self, "std", std, "images are divided by it; none of the three may be 0")

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        return _NOTHING

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        self.output_dtype(images.dtype)
        width, dtype, device = images.shape[3], images.dtype, images.device
        rows = images.permute(0, 2, 3, 1).view(-1, width * 3)
        mean, std = (_tiled(values, width, dtype).to(device, non_blocking=True) for values in (self.mean, self.std))
        rows.sub_(mean).div_(std)
        return images

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        if not dtype.is_floating_point:
            raise OptionError(
                f"{self!r} works on floating point images, but gets {str(dtype).removeprefix('torch.')} images; "
                "put ToDtype(torch.float32, scale=True) before it"
            )
        return dtype


@dataclass(frozen=True)
class ScaleAndShift:
    """Compute uint8 * factor + shift per channel in float32 (float64 for float64) and round to `dtype` once.

    It replaces ToDtype followed by Normalize. The difference from torchvision's three roundings is within 1e-6 for float32,
    and within one step of the dtype for float16 and bfloat16, where this is the more exact one.
    """

    dtype: torch.dtype
    factor: Triple
    shift: Triple

    locality: ClassVar[Locality] = Locality.POINT

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        return _NOTHING

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        nhwc = images.permute(0, 2, 3, 1)
        out = torch.empty(nhwc.shape, dtype=self.dtype, device=images.device)
        self.apply_into(nhwc, out)
        return out.permute(0, 3, 1, 2)

    def apply_into(self, images: torch.Tensor, out: torch.Tensor) -> None:
        """Write the result for `images` (n, h, w, 3), uint8, to `out` of that shape; both NHWC-contiguous, on one device."""
        num, height, width, _ = images.shape
        source, target = images.reshape(num, height, width * 3), out.view(num, height, width * 3)
        wide_dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        factor = _tiled(self.factor, width, wide_dtype).to(images.device, non_blocking=True)
        shift = _tiled(self.shift, width, wide_dtype).to(images.device, non_blocking=True) if any(self.shift) else None
        if not images.is_cpu or self.dtype == torch.float64:  # one kernel, which converts its input and output
            _multiply_add(source, factor, shift, target)
            return
        # Image by image, so that intermediate values stay in cache and `out` is written once.
        wide, is_rounded = _scratch_rows(height, width * 3), self.dtype != torch.float32
        for one, made in zip(source.unbind(), target.unbind(), strict=True):
            wide.copy_(one)
            _multiply_add(wide, factor, shift, wide if is_rounded else made)
            if is_rounded:
                made.copy_(wide)

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        if dtype != torch.uint8:
            raise OptionError(f"{self!r} takes uint8 images, got {dtype}")
        return self.dtype


def scale_and_shift(conversion: ToDtype, normalize: Normalize | None) -> ScaleAndShift:
    """Return the two as one operation on uint8 images; `conversion` must lead to floating point."""
    unit = 1.0 / 255 if conversion.scale else 1.0
    if normalize is None:
        return ScaleAndShift(conversion.dtype, (unit, unit, unit), (0.0, 0.0, 0.0))
    red, green, blue = (unit / std for std in normalize.std)
    shift_red, shift_green, shift_blue = (-mean / std for mean, std in zip(normalize.mean, normalize.std, strict=True))
    return ScaleAndShift(conversion.dtype, (red, green, blue), (shift_red, shift_green, shift_blue))


@lru_cache(maxsize=64)
def _tiled(values: Triple, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the three values, repeated, (width * 3,), in host memory. Shared; do not write to it."""
    return torch.from_numpy(np.tile(np.array(values), width)).to(dtype=dtype)


def _multiply_add(source: torch.Tensor, factor: torch.Tensor, shift: torch.Tensor | None, out: torch.Tensor) -> None:
    if shift is None:
        torch.mul(source, factor, out=out)
    else:
        torch.addcmul(shift, source, factor, out=out)


def _scratch_rows(height: int, row_length: int) -> torch.Tensor:
    """Return this thread's float32 scratch of that shape, with undefined contents."""
    rows: torch.Tensor | None = getattr(_scratch, "rows", None)
    if rows is None or rows.shape != (height, row_length):
        rows = _scratch.rows = torch.empty((height, row_length), dtype=torch.float32)
    return rows


def _check_triple(owner: object, argument: str, values: object) -> Triple:
    if isinstance(values, torch.Tensor):
        values = values.tolist()
    if isinstance(values, Sequence) and len(values) == 3 and all(map(is_number, values)):
        red, green, blue = (float(value) for value in values)
        return (red, green, blue)
    raise refusal(owner, argument, values, "it must be three numbers, for red, green and blue")
