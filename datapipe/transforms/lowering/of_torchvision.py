"""Rules for torchvision's transforms, v1 and v2, and for the functions of the same names that partials call."""

from __future__ import annotations

from typing import Any

import torch

from datapipe.core.errors import OptionError
from datapipe.transforms.geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from datapipe.transforms.lowering.conversions import (
    convert_dtype,
    maybe_pil_to_tensor,
    maybe_to_tensor,
    normalize,
    nothing,
    pil_to_tensor,
    to_dtype,
    to_dtype_by_function,
    to_image,
    to_pure_tensor,
    to_tensor,
)
from datapipe.transforms.lowering.rules import Kind, Lowered, Rule, is_tensor, refuse_pil
from datapipe.transforms.pixels.auto_augment import RandAugment, TrivialAugmentWide
from datapipe.transforms.pixels.blur import GaussianBlur
from datapipe.transforms.pixels.color import ColorJitter, RandomGrayscale
from datapipe.transforms.pixels.dtype import ToDtype
from datapipe.transforms.pixels.erasing import RandomErasing
from datapipe.transforms.pixels.mix import CutMix, MixUp
from datapipe.transforms.pixels.occasional import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)

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


def _center_crop(kind: Kind, *, size: Any) -> Lowered:
    return Lowered((CenterCrop(size),))


def _center_crop_by_function(kind: Kind, *, output_size: Any) -> Lowered:
    return Lowered((CenterCrop(output_size),))


def _random_crop(kind: Kind, *, size: Any, padding: Any, pad_if_needed: bool, fill: Any, padding_mode: str) -> Lowered:
    crop = RandomCrop(size, padding=padding, pad_if_needed=pad_if_needed, fill=fill, padding_mode=padding_mode)
    return Lowered((crop,))


def _random_crop_v2(kind: Kind, *, padding: Any, **others: Any) -> Lowered:
    if padding is not None:
        left, right, top, bottom = padding  # v2 keeps the padding in this order
        padding = [left, top, right, bottom]
    return _random_crop(kind, padding=padding, **others)


def _pad(kind: Kind, *, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Lowered:
    return Lowered((Pad(padding, fill=fill, padding_mode=padding_mode),))


def _horizontal_flip(kind: Kind, *, p: float = 1.0) -> Lowered:
    return Lowered((RandomHorizontalFlip(p),))


def _vertical_flip(kind: Kind, *, p: float = 1.0) -> Lowered:
    return Lowered((RandomVerticalFlip(p),))


# -- pixels ----------------------------------------------------------------------------------------


def _color_jitter(kind: Kind, *, brightness: Any, contrast: Any, saturation: Any, hue: Any) -> Lowered:
    return Lowered((ColorJitter(brightness, contrast, saturation, hue),))


def _grayscale(kind: Kind, *, num_output_channels: int = 1) -> Lowered:
    if num_output_channels != 3:
        raise OptionError(f"num_output_channels is {num_output_channels}, but images have three channels here; pass 3")
    return Lowered((RandomGrayscale(1.0),))


def _random_grayscale(kind: Kind, *, p: float) -> Lowered:
    return Lowered((RandomGrayscale(p),))


def _gaussian_blur(kind: Kind, *, kernel_size: Any, sigma: Any) -> Lowered:
    return Lowered((GaussianBlur(kernel_size, sigma),))


def _rand_augment(kind: Kind, *, num_ops: int, magnitude: int, num_magnitude_bins: int, interpolation: Any, fill: Any) -> Lowered:
    return Lowered((RandAugment(num_ops, magnitude, num_magnitude_bins, interpolation, fill),))


def _trivial_augment(kind: Kind, *, num_magnitude_bins: int, interpolation: Any, fill: Any) -> Lowered:
    return Lowered((TrivialAugmentWide(num_magnitude_bins, interpolation, fill),))


def _random_erasing(kind: Kind, *, p: float, scale: Any, ratio: Any, value: Any, inplace: bool) -> Lowered:
    refuse_pil(kind)
    return _random_erasing_v2(kind, p=p, scale=scale, ratio=ratio, value=value, inplace=inplace)


def _random_erasing_v2(kind: Kind, *, p: float, scale: Any, ratio: Any, value: Any, inplace: bool) -> Lowered:
    return Lowered((RandomErasing(p, scale, ratio, "random" if value is None else value, inplace),))


def _invert(kind: Kind, *, p: float) -> Lowered:
    return Lowered((RandomInvert(p),))


def _posterize(kind: Kind, *, bits: int, p: float) -> Lowered:
    return Lowered((RandomPosterize(bits, p),))


def _solarize(kind: Kind, *, threshold: float, p: float) -> Lowered:
    return Lowered((RandomSolarize(threshold, p),))


def _autocontrast(kind: Kind, *, p: float) -> Lowered:
    return Lowered((RandomAutocontrast(p),))


def _equalize(kind: Kind, *, p: float) -> Lowered:
    return Lowered((RandomEqualize(p),))


def _sharpness(kind: Kind, *, sharpness_factor: float, p: float) -> Lowered:
    return Lowered((RandomAdjustSharpness(sharpness_factor, p),))


# -- presets and batches ----------------------------------------------------------------------------


def _image_classification(
    kind: Kind, *, crop_size: Any, resize_size: Any, mean: Any, std: Any, interpolation: Any, antialias: bool | None
) -> Lowered:
    """Convert the result of `weights.transforms()`."""
    (resized,) = _resize(kind, size=resize_size, interpolation=interpolation, antialias=antialias).ops
    (normalized,) = normalize(kind, mean=mean, std=std).ops
    return Lowered((resized, CenterCrop(crop_size), ToDtype(torch.float32, scale=True), normalized), "tensor")


def _mix(made: type[MixUp] | type[CutMix], alpha: float, num_classes: int | None, labels_getter: Any) -> Lowered:
    if getattr(labels_getter, "__name__", "") != "_find_labels_default_heuristic":
        raise OptionError("labels_getter is your own, but labels come from the dataset here; drop the argument")
    return Lowered((made(alpha=alpha, num_classes=num_classes),))


def _mix_up(kind: Kind, *, alpha: float, num_classes: int | None, labels_getter: Any) -> Lowered:
    return _mix(MixUp, alpha, num_classes, labels_getter)


def _cut_mix(kind: Kind, *, alpha: float, num_classes: int | None, labels_getter: Any) -> Lowered:
    return _mix(CutMix, alpha, num_classes, labels_getter)


# -- the table -------------------------------------------------------------------------------------

_V1, _V2 = "torchvision.transforms.", "torchvision.transforms.v2."
_V1_FUNCTIONS, _V2_FUNCTIONS = _V1 + "functional.", _V2 + "functional."
_ALIKE: dict[str, Rule] = {  # in v1 and v2
    "Resize": _resize,
    "RandomResizedCrop": random_resized_crop,
    "CenterCrop": _center_crop,
    "Pad": _pad,
    "RandomHorizontalFlip": _horizontal_flip,
    "RandomVerticalFlip": _vertical_flip,
    "ColorJitter": _color_jitter,
    "Grayscale": _grayscale,
    "RandomGrayscale": _random_grayscale,
    "GaussianBlur": _gaussian_blur,
    "RandAugment": _rand_augment,
    "TrivialAugmentWide": _trivial_augment,
    "RandomInvert": _invert,
    "RandomPosterize": _posterize,
    "RandomSolarize": _solarize,
    "RandomAutocontrast": _autocontrast,
    "RandomEqualize": _equalize,
    "RandomAdjustSharpness": _sharpness,
    "Normalize": normalize,
}
_FUNCTIONS: dict[str, Rule] = {  # in v1's and v2's modules of functions, called by partials
    "resize": _resize,
    "center_crop": _center_crop_by_function,
    "pad": _pad,
    "hflip": _horizontal_flip,
    "vflip": _vertical_flip,
    "horizontal_flip": _horizontal_flip,
    "vertical_flip": _vertical_flip,
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
    _V1 + "RandomCrop": _random_crop,
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
    _V2 + "MixUp": _mix_up,
    _V2 + "CutMix": _cut_mix,
}
