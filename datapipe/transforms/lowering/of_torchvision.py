"""Rules for torchvision's transforms, v1 and v2, and for the functions of the same names that partials call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from datapipe.errors import OptionError
from datapipe.transforms.geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from datapipe.transforms.lowering.rules import Kind, Lowered, Rule, is_tensor, refuse_pil, refuse_tensor
from datapipe.transforms.pixels.auto_augment import RandAugment, TrivialAugmentWide
from datapipe.transforms.pixels.blur import GaussianBlur
from datapipe.transforms.pixels.color import (
    ColorJitter,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from datapipe.transforms.pixels.dtype import Normalize, ToDtype
from datapipe.transforms.pixels.erasing import RandomErasing
from datapipe.transforms.pixels.mix import CutMix, MixUp

# -- geometry --------------------------------------------------------------------------------------


def _resize(
    kind: Kind, *, size: Any, interpolation: Any = "bilinear", max_size: int | None = None, antialias: bool | None = True
) -> Lowered:
    antialias = _antialias(kind, antialias)
    return Lowered((Resize(size, interpolation=interpolation, max_size=max_size, antialias=antialias),))


def _antialias(kind: Kind, antialias: bool | None) -> Any:
    """Return True for PIL images, whose resizes are always antialiased."""
    return antialias if is_tensor(kind) else True


def random_resized_crop(
    kind: Kind, *, size: Any, scale: Any, ratio: Any, interpolation: Any, antialias: bool | None = True
) -> Lowered:
    """Convert RandomResizedCrop."""
    antialias = _antialias(kind, antialias)
    return Lowered((RandomResizedCrop(size, scale=scale, ratio=ratio, interpolation=interpolation, antialias=antialias),))


def _center_crop_by_function(kind: Kind, *, output_size: Any) -> Lowered:
    return Lowered((CenterCrop(output_size),))


def _random_crop_v2(kind: Kind, *, size: Any, padding: Any, pad_if_needed: bool, fill: Any, padding_mode: str) -> Lowered:
    if padding is not None:
        left, right, top, bottom = padding  # v2 keeps the padding in this order
        padding = [left, top, right, bottom]
    return Lowered((RandomCrop(size, padding, pad_if_needed, fill, padding_mode),))


def _flip_horizontally(kind: Kind) -> Lowered:
    return Lowered((RandomHorizontalFlip(1.0),))


def _flip_vertically(kind: Kind) -> Lowered:
    return Lowered((RandomVerticalFlip(1.0),))


# -- kinds and dtypes -------------------------------------------------------------------------------


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


# -- pixels ----------------------------------------------------------------------------------------


def _grayscale(kind: Kind, *, num_output_channels: int = 1) -> Lowered:
    if num_output_channels != 3:
        raise OptionError(f"num_output_channels is {num_output_channels}, but images have three channels here; pass 3")
    return Lowered((RandomGrayscale(1.0),))


def _random_erasing(kind: Kind, *, p: float, scale: Any, ratio: Any, value: Any, inplace: bool) -> Lowered:
    refuse_pil(kind)
    return _random_erasing_v2(kind, p=p, scale=scale, ratio=ratio, value=value, inplace=inplace)


def _random_erasing_v2(kind: Kind, *, p: float, scale: Any, ratio: Any, value: Any, inplace: bool) -> Lowered:
    return Lowered((RandomErasing(p, scale, ratio, "random" if value is None else value, inplace),))


# -- presets and batches ----------------------------------------------------------------------------


def _image_classification(
    kind: Kind, *, crop_size: Any, resize_size: Any, mean: Any, std: Any, interpolation: Any, antialias: bool | None
) -> Lowered:
    """Convert the result of `weights.transforms()`."""
    (resized,) = _resize(kind, size=resize_size, interpolation=interpolation, antialias=antialias).ops
    (normalized,) = normalize(kind, mean=mean, std=std).ops
    return Lowered((resized, CenterCrop(crop_size), ToDtype(torch.float32, scale=True), normalized), "tensor")


def _mix(made: type[MixUp] | type[CutMix], kind: Kind, *, alpha: float, num_classes: int | None, labels_getter: Any) -> Lowered:
    if getattr(labels_getter, "__name__", "") != "_find_labels_default_heuristic":
        raise OptionError("labels_getter is your own, but labels come from the dataset here; drop the argument")
    return Lowered((made(alpha=alpha, num_classes=num_classes),))


# -- the table -------------------------------------------------------------------------------------

_V1, _V2 = "torchvision.transforms.", "torchvision.transforms.v2."
_V1_FUNCTIONS, _V2_FUNCTIONS = _V1 + "functional.", _V2 + "functional."
_SAME_ARGUMENTS: tuple[type, ...] = (  # as ours of the same name
    CenterCrop, Pad, RandomHorizontalFlip, RandomVerticalFlip, ColorJitter, RandomGrayscale, GaussianBlur, RandAugment,
    TrivialAugmentWide, RandomInvert, RandomPosterize, RandomSolarize, RandomAutocontrast, RandomEqualize, RandomAdjustSharpness,
)  # fmt: skip
_ALIKE: dict[str, Rule] = {  # in v1 and v2
    **{ours.__name__: ours for ours in _SAME_ARGUMENTS},
    "Resize": _resize,
    "RandomResizedCrop": random_resized_crop,
    "Grayscale": _grayscale,
    "Normalize": normalize,
}
_FUNCTIONS: dict[str, Rule] = {  # in v1's and v2's modules of functions, called by partials
    "resize": _resize,
    "center_crop": _center_crop_by_function,
    "pad": Pad,
    "hflip": _flip_horizontally,
    "vflip": _flip_vertically,
    "horizontal_flip": _flip_horizontally,
    "vertical_flip": _flip_vertically,
    "rgb_to_grayscale": _grayscale,
    "to_tensor": to_tensor,
    "pil_to_tensor": pil_to_tensor,
    "convert_image_dtype": convert_dtype,
    "normalize": normalize,
}
TORCHVISION: dict[str, Rule] = {
    **{place + name: rule for place in (_V1, _V2) for name, rule in _ALIKE.items()},
    **{place + name: rule for place in (_V1_FUNCTIONS, _V2_FUNCTIONS) for name, rule in _FUNCTIONS.items()},
    _V1 + "_presets.ImageClassification": _image_classification,
    _V1 + "RandomCrop": RandomCrop,
    _V2 + "RandomCrop": _random_crop_v2,
    _V1 + "RandomErasing": _random_erasing,
    _V2 + "RandomErasing": _random_erasing_v2,
    _V1 + "ToTensor": to_tensor,
    _V2 + "ToTensor": maybe_to_tensor,
    _V1 + "PILToTensor": pil_to_tensor,
    _V2 + "PILToTensor": maybe_pil_to_tensor,
    _V2 + "ToImage": to_image,
    _V2_FUNCTIONS + "to_image": to_image,
    _V2 + "ToPureTensor": to_pure_tensor,
    _V1 + "ConvertImageDtype": convert_dtype,
    _V2 + "ConvertImageDtype": convert_dtype,
    _V2 + "ToDtype": to_dtype,
    _V2_FUNCTIONS + "to_dtype": to_dtype_by_function,
    _V2 + "Identity": nothing,
    _V2 + "RGB": nothing,  # images are always RGB
    "torch.nn.Identity": nothing,
    _V2 + "MixUp": partial(_mix, MixUp),
    _V2 + "CutMix": partial(_mix, CutMix),
}
