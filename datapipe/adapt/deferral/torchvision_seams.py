"""Replace torchvision's functions that continue a recorded image: to a tensor, normalised, changed in colour.

They are replaced once the user's process has imported torchvision, which this module never does itself, and wherever
a module holds them under a name. A function held elsewhere (in a partial, for example) stays the original: it
needs the pixels and gets them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from datapipe.adapt.deferral import tensors, torchvision_v2_seams
from datapipe.adapt.deferral.graph import Step
from datapipe.adapt.deferral.pillow_seams import PILLOW_STEPS, Planned, _recording, node_of
from datapipe.adapt.deferral.recorder import Fetch, call_site, current
from datapipe.adapt.deferral.torchvision_v2_seams import floats

_FUNCTIONAL = "torchvision.transforms.functional"
_ON_PILLOW = "torchvision.transforms._functional_pil"

# The original functions, by the names of the steps. Empty until `install` finds torchvision.
TENSOR_STEPS: dict[str, Callable[..., Any]] = {}
_replaced: dict[int, tuple[Any, Any]] = {}  # by id of the original: it, and what stands in its place


def install() -> None:
    """Replace the functions if torchvision has been imported. Call it again whenever it may have been imported since."""
    functional, on_pillow = sys.modules.get(_FUNCTIONAL), sys.modules.get(_ON_PILLOW)
    if TENSOR_STEPS:
        if "to_image" not in TENSOR_STEPS and torchvision_v2_seams.is_imported():
            _install_v2()
        return
    if functional is None or on_pillow is None or not hasattr(functional, "normalize"):
        return
    replaced = _replaced
    for name, plan in _COLOR_STEPS.items():
        original = getattr(on_pillow, name)
        PILLOW_STEPS[name] = original
        replaced[id(original)] = (original, _recording(original, plan))
    original = functional.gaussian_blur
    PILLOW_STEPS["gaussian_blur"] = original
    replaced[id(original)] = (original, _recording(original, _gaussian_blur))
    for name, make in (("to_tensor", _to_tensor), ("pil_to_tensor", _pil_to_tensor), ("normalize", _normalize)):
        original = getattr(functional, name)
        TENSOR_STEPS[name] = original
        replaced[id(original)] = (original, _in_place_of(original, make))
    _replace_names(replaced)
    if torchvision_v2_seams.is_imported():
        _install_v2()


def _install_v2() -> None:
    """Put the seams of v2 in place, whose functions are replaced as those of v1 are."""
    replaced: dict[int, tuple[Any, Any]] = dict(_replaced)
    torchvision_v2_seams.install(replaced, TENSOR_STEPS, _to_image, _can_record)
    _replace_names(replaced)


def _replace_names(replaced: dict[int, tuple[Any, Any]]) -> None:
    """Put functions in place wherever a module holds the originals under a name."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if id(value) in replaced and replaced[id(value)][0] is value:
                names[name] = replaced[id(value)][1]


def _in_place_of(original: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the original's name and module, as other code tells functions apart by these."""

    @functools.wraps(original)
    def recording(*args: Any, **kwargs: Any) -> Any:
        return make(original, *args, **kwargs)

    return recording


# -- images that stay Pillow's ----------------------------------------------------------------------


def _adjusted(name: str, image: Any, factor: Any) -> Planned | None:
    if image.mode != "RGB" or not isinstance(factor, (int, float)) or (name == "adjust_hue" and not -0.5 <= factor <= 0.5):
        return None
    return (name, (factor,), "RGB", image.size, None)


def _brightness(img: Any, brightness_factor: Any) -> Planned | None:
    return _adjusted("adjust_brightness", img, brightness_factor)


def _contrast(img: Any, contrast_factor: Any) -> Planned | None:
    return _adjusted("adjust_contrast", img, contrast_factor)


def _saturation(img: Any, saturation_factor: Any) -> Planned | None:
    return _adjusted("adjust_saturation", img, saturation_factor)


def _hue(img: Any, hue_factor: Any) -> Planned | None:
    return _adjusted("adjust_hue", img, hue_factor)


def _grayscale(img: Any, num_output_channels: Any) -> Planned | None:
    if num_output_channels not in (1, 3) or img.mode != "RGB":
        return None
    mode = "RGB" if num_output_channels == 3 else "L"
    return ("to_grayscale", (num_output_channels,), mode, img.size, num_output_channels)


def _gaussian_blur(img: Any, kernel_size: Any, sigma: Any = None) -> Planned | None:
    sizes = tuple(kernel_size) if isinstance(kernel_size, (list, tuple)) else (kernel_size, kernel_size)
    if img.mode != "RGB" or not all(isinstance(size, int) and size > 0 and size % 2 for size in sizes):
        return None
    if min(img.size) <= max(sizes) // 2:
        return None
    return ("gaussian_blur", (list(sizes), sigma), "RGB", img.size, sizes)


_COLOR_STEPS: dict[str, Callable[..., Planned | None]] = {
    "adjust_brightness": _brightness,
    "adjust_contrast": _contrast,
    "adjust_saturation": _saturation,
    "adjust_hue": _hue,
    "to_grayscale": _grayscale,
}


# -- images that become tensors ---------------------------------------------------------------------


def _can_record(fetch: Fetch) -> bool:
    """Return whether a tensor made now would be a plain one."""
    return (
        fetch.mode is not None
        and fetch.mode.is_innermost
        and not torch.is_inference_mode_enabled()
        and torch._C._get_tracing_state() is None
    )


def _image_step(name: str, pic: Any, trait: Any, fetch: Fetch) -> Step | None:
    """Return the step that makes a tensor of a recorded image."""
    if not isinstance(pic, Image.Image) or not _can_record(fetch):
        return None
    parent = node_of(pic, fetch)
    if parent is None or pic.mode not in ("RGB", "L"):
        return None
    return Step(parent, name, (), "tensor", pic.size, (pic.mode, trait), call_site() if fetch.notes_sites else None)


def _shape_of(pic: Image.Image) -> tuple[int, int, int]:
    return (3 if pic.mode == "RGB" else 1, pic.size[1], pic.size[0])


def _to_tensor(original: Callable[..., Any], pic: Any) -> Any:
    fetch = current()
    if fetch is None or torch.get_default_dtype() is not torch.float32:
        return original(pic)
    step = _image_step("to_tensor", pic, None, fetch)
    if step is None:
        return original(pic)
    _, _, width = shape = _shape_of(pic)
    return tensors.stand_in(step, shape, torch.float32, (1, width, 1) if shape[0] == 1 else None, fetch)


def _pil_to_tensor(original: Callable[..., Any], pic: Any) -> Any:
    fetch = current()
    step = None if fetch is None else _image_step("pil_to_tensor", pic, None, fetch)
    if fetch is None or step is None:
        return original(pic)
    channels, _, width = shape = _shape_of(pic)
    return tensors.stand_in(step, shape, torch.uint8, (1, width * channels, channels), fetch)


def _to_image(original: Callable[..., Any], inpt: Any) -> Any:
    fetch = current()
    step = None if fetch is None else _image_step("to_image", inpt, None, fetch)
    if fetch is None or step is None:
        return original(inpt)
    channels, _, width = shape = _shape_of(inpt)
    strides = (1, width * channels, channels)
    return tensors.stand_in(step, shape, torch.uint8, strides, fetch, kind=torchvision_v2_seams.image_type())


def _normalize(original: Callable[..., Any], tensor: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    fetch = current()
    parent = None if fetch is None else tensors.step_of(tensor, fetch)
    is_plain = type(tensor) is torch.Tensor and not inplace
    if fetch is None or parent is None or not is_plain or tensor.dtype is not torch.float32 or not _can_record(fetch):
        return original(tensor, mean, std, inplace)
    channels = tensor.shape[0]
    per_channel = floats(mean, channels), floats(std, channels)
    if per_channel[0] is None or per_channel[1] is None or not all(abs(value) > 1e-30 for value in per_channel[1]):
        return original(tensor, mean, std, inplace)
    site = call_site() if fetch.notes_sites else None
    step = Step(parent, "normalize", per_channel, "tensor", parent.size, per_channel, site)
    return tensors.stand_in(step, tuple(tensor.shape), torch.float32, tensor.stride(), fetch)
