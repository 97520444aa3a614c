"""Rules for transforms that change the kind or the dtype of an image, and for Normalize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from datapipe.core.errors import OptionError
from datapipe.transforms.lowering.rules import Kind, Lowered, is_tensor, refuse_pil, refuse_tensor
from datapipe.transforms.pixels.dtype import Normalize, ToDtype


def to_tensor(kind: Kind) -> Lowered:
    """Convert a PIL image to floating point, 0 to 1; refuse tensors."""
    refuse_tensor(kind)
    return Lowered((ToDtype(torch.get_default_dtype(), scale=True),), "tensor")


def maybe_to_tensor(kind: Kind) -> Lowered:
    """Convert a PIL image to floating point, 0 to 1; pass tensors through."""
    return Lowered() if is_tensor(kind) else to_tensor(kind)


def pil_to_tensor(kind: Kind) -> Lowered:
    """Convert a PIL image to a uint8 tensor; refuse tensors."""
    refuse_tensor(kind)
    return Lowered((), "tensor")


def maybe_pil_to_tensor(kind: Kind) -> Lowered:
    """Convert a PIL image to a uint8 tensor; pass tensors through."""
    return Lowered() if is_tensor(kind) else Lowered((), "tensor")


def to_image(kind: Kind) -> Lowered:
    """Convert any image to torchvision's tv_tensors.Image."""
    return Lowered((), "image")


def to_pure_tensor(kind: Kind) -> Lowered:
    """Convert a tv_tensors.Image to a plain tensor."""
    return Lowered((), "tensor") if kind == "image" else Lowered()


def convert_dtype(kind: Kind, *, dtype: torch.dtype = torch.float32) -> Lowered:
    """Convert as `to_dtype` with scale; refuse PIL images."""
    refuse_pil(kind)
    return to_dtype(kind, dtype=dtype, scale=True)


def to_dtype(kind: Kind, *, dtype: Any = torch.float32, scale: bool = False) -> Lowered:
    """Convert as v2's ToDtype, which passes PIL images through. `dtype` may be given by type."""
    if kind == "pil":
        return Lowered()
    if isinstance(dtype, Mapping):
        dtype = _of_images(dtype, kind)
        if dtype is None:
            return Lowered()
    return Lowered((ToDtype(dtype, scale=scale),), "tensor" if kind == "any" else None)


def to_dtype_by_function(kind: Kind, *, dtype: Any = torch.float32, scale: bool = False) -> Lowered:
    """Convert as the function `to_dtype`, which refuses PIL images."""
    refuse_pil(kind)
    return to_dtype(kind, dtype=dtype, scale=scale)


def _of_images(dtypes: Mapping[Any, torch.dtype | None], kind: Kind) -> torch.dtype | None:
    """Return the dtype for images among dtypes given by type."""
    for key, dtype in dtypes.items():
        is_image = getattr(key, "__name__", "") == "Image" and getattr(key, "__module__", "").startswith("torchvision.tv_tensors")
        if (is_image and kind != "tensor") or (key is torch.Tensor and kind != "image"):
            return dtype
    if "others" not in dtypes:
        raise OptionError("its dtypes are given by type, and there is none for images")
    return dtypes["others"]


def normalize(kind: Kind, *, mean: Any, std: Any, inplace: bool = False) -> Lowered:
    """Normalize floating point images."""
    return Lowered((Normalize(_triple(mean), _triple(std), inplace),))


def _triple(values: Any) -> Any:
    """Return one number for all channels as three."""
    values = values.tolist() if isinstance(values, torch.Tensor) else values
    return list(values) * 3 if isinstance(values, Sequence) and len(values) == 1 else values


def nothing(kind: Kind) -> Lowered:
    """Leave the image unchanged."""
    return Lowered()
