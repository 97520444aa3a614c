"""Rules for timm's own transforms. Its `create_transform` makes a Compose of these and torchvision's."""

from __future__ import annotations

import math
from typing import Any

import torch

from datapipe.errors import OptionError
from datapipe.transforms.geometry import CenterCrop
from datapipe.transforms.lowering.of_torchvision import maybe_pil_to_tensor, maybe_to_tensor, random_resized_crop
from datapipe.transforms.lowering.rules import Kind, Lowered, Rule, refuse_pil, refuse_tensor
from datapipe.transforms.options import check_constant_padding
from datapipe.transforms.pixels.dtype import ToDtype
from datapipe.transforms.pixels.erasing import RandomErasing


def _random_resized_crop(kind: Kind, *, size: Any, scale: Any, ratio: Any, interpolation: Any) -> Lowered:
    if isinstance(interpolation, (tuple, list)):
        raise OptionError("interpolation is 'random'; only 'bilinear' and 'bicubic' are available; pass one of them")
    return random_resized_crop(kind, size=size, scale=scale, ratio=ratio, interpolation=interpolation)


def _center_crop_or_pad(kind: Kind, *, size: Any, fill: Any, padding_mode: str) -> Lowered:
    crop = CenterCrop(size, fill=fill)
    check_constant_padding(crop, padding_mode)
    return Lowered((crop,))


def _to_tensor(kind: Kind, *, dtype: torch.dtype) -> Lowered:
    refuse_tensor(kind)
    return Lowered((ToDtype(dtype, scale=False),), "tensor")


def _random_erasing(
    kind: Kind,
    *,
    probability: float,
    min_area: float,
    max_area: float,
    log_aspect_ratio: tuple[float, float],
    min_count: int,
    max_count: int,
    num_splits: int,
    mode: str,
    rand_color: bool,
    per_pixel: bool,
    device: Any,
) -> Lowered:
    """Convert one box of zeros, or of noise per pixel, as in torchvision; `num_splits` concerns only batches."""
    refuse_pil(kind)
    if (min_count, max_count) != (1, 1):
        raise OptionError(f"it erases {min_count} to {max_count} boxes, but only one is available; leave out the count")
    if rand_color:
        raise OptionError("mode is 'rand', one colour drawn per box, which is not available; pass 'const' or 'pixel'")
    ratio = tuple(math.exp(end) for end in log_aspect_ratio)
    return Lowered((RandomErasing(probability, (min_area, max_area), ratio, "random" if per_pixel else 0.0),))


_TIMM: dict[str, Rule] = {
    "RandomResizedCropAndInterpolation": _random_resized_crop,
    "CenterCropOrPad": _center_crop_or_pad,
    "MaybeToTensor": maybe_to_tensor,
    "MaybePILToTensor": maybe_pil_to_tensor,
    "ToTensor": _to_tensor,
    "RandomErasing": _random_erasing,
}
TIMM: dict[str, Rule] = {f"timm.data.{name}": rule for name, rule in _TIMM.items()}
