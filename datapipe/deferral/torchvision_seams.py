"""Replace torchvision's functions that continue a recorded image: to a tensor, normalised, changed in colour.

They are replaced once the user's process has imported torchvision, which this module never does itself, and wherever
a module holds them under a name. A function held elsewhere (in a partial, for example) stays the original: it
needs the pixels and gets them. transforms.v2 finds a kernel by the type of what it is given, in a registry, so that is where its
kernels are replaced. What its `to_image` gives is a `tv_tensors.Image`, and so is its stand-in.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from PIL import Image

from datapipe.deferral import tensors
from datapipe.deferral.graph import Step
from datapipe.deferral.pillow_seams import PILLOW_STEPS, Planned, node_of, recording_method, watch
from datapipe.deferral.recorder import APPROXIMATED, Fetch, PendingPixels, current, recording, site_now
from datapipe.deferral.tensor_operations import Derived, as_float, bordered, calculated, padded, resized, sides_of

_FUNCTIONAL = "torchvision.transforms.functional"
_ON_PILLOW = "torchvision.transforms._functional_pil"
_ON_TENSORS = "torchvision.transforms._functional_tensor"
_V2 = "torchvision.transforms.v2.functional"
_TV_TENSORS = "torchvision.tv_tensors"

# The original functions, by the names of the steps. Empty until torchvision is found.
TENSOR_STEPS: dict[str, Callable[..., Any]] = {}
_stand_ins: dict[int, tuple[Any, Any]] = {}  # by id of the original: it, and what is to stand in its place
_places: list[_Place] = []  # found, and not taken yet
_listening: list[_Place] = []  # those of them that set off the alarm
_latest = [""]  # the module that had been imported last when they were looked for


class _Place(NamedTuple):
    """A dictionary that holds an original function under a key, and what is to stand there."""

    held: dict[Any, Any]
    key: Any
    original: Any
    stand_in: Any


def install() -> None:
    """Replace the functions if torchvision has been imported. Call it again whenever it may have been imported since."""
    prepare()
    if _places:
        _take(_places)
        _places.clear()


def listen() -> None:
    """Replace only the functions that set off the alarm, as `pillow_seams.listen`."""
    prepare()
    if _places:
        _take(_listening)


def _take(places: list[_Place]) -> None:
    for place in places:
        if place.held.get(place.key) is place.original:
            place.held[place.key] = place.stand_in


def prepare() -> None:
    """Find what `install` will replace. To look through all modules costs a worker that was forked 80 ms, its parent 5."""
    if _places and next(reversed(sys.modules)) != _latest[0]:
        _find_names(after=_latest[0])
    if _FUNCTIONAL not in sys.modules or "to_image" in TENSOR_STEPS or (TENSOR_STEPS and _V2 not in sys.modules):
        return  # in a fraction of a microsecond
    functional, on_pillow, v2 = (sys.modules.get(name) for name in (_FUNCTIONAL, _ON_PILLOW, _V2))
    is_new = False
    if not TENSOR_STEPS and on_pillow is not None and hasattr(functional, "normalize"):
        for name, plan in _IMAGE_STEPS.items():
            PILLOW_STEPS[name] = original = getattr(functional if name == "gaussian_blur" else on_pillow, name)
            _stand_ins[id(original)] = (original, recording_method(original, plan))
        for name in ("to_tensor", "pil_to_tensor", "normalize"):
            _add(name, getattr(functional, name))
        _add("pad", sys.modules[_ON_TENSORS].pad)
        is_new = True
    if TENSOR_STEPS and "to_image" not in TENSOR_STEPS and hasattr(v2, "to_image") and hasattr(v2, "normalize"):
        _prepare_v2(v2)
        is_new = True
    if is_new:
        _find_names()


def _prepare_v2(functional: Any) -> None:
    """Find v2's kernels once all of it is imported: those that it shares with v1, and its own."""
    registry: dict[Any, dict[type, Any]] = functional._utils._KERNEL_REGISTRY
    _add("to_image", functional.to_image)
    _add("v2 to_dtype", functional.to_dtype_image)
    _add("v2 normalize", functional.normalize_image)
    _add("v2 pad", functional._geometry._pad_with_scalar_fill)
    _add("resize_image", functional.resize_image)
    PILLOW_STEPS["resize_image"] = _resize_image
    image = sys.modules[_TV_TENSORS].Image
    for kernels in registry.values():
        for kind, kernel in kernels.items():
            if id(kernel) in _stand_ins:
                _places.append(_Place(kernels, kind, kernel, _stand_ins[id(kernel)][1]))
            elif kind is image and id(inner := getattr(kernel, "__wrapped__", None)) in _stand_ins:
                wrapped = functional._utils._kernel_tv_tensor_wrapper(_stand_ins[id(inner)][1])
                _places.append(_Place(kernels, kind, kernel, wrapped))


def _add(name: str, original: Callable[..., Any]) -> None:
    """Note what is to stand in the place of a function that makes a tensor."""
    TENSOR_STEPS[name] = original
    _stand_ins[id(original)] = (original, _recording_function(name, original))


def _find_names(*, after: str = "") -> None:
    """Find the names under which modules hold originals: all modules, or those that were imported `after` another."""
    names = list(itertools.takewhile(lambda name: name != after, reversed(sys.modules)))
    for module in map(sys.modules.get, names):
        held = getattr(module, "__dict__", None)
        if not isinstance(held, dict):
            continue
        for key, value in list(held.items()):
            if id(value) in _stand_ins and _stand_ins[id(value)][0] is value:
                _places.append(_Place(held, key, value, _stand_ins[id(value)][1]))
    _listening[:] = [place for place in _places if place.original.__name__ in APPROXIMATED]
    _latest[:] = names[:1] or [after]


# -- images that stay Pillow's ----------------------------------------------------------------------


def _adjusted(name: str, image: Any, *args: Any, **kwargs: Any) -> Planned | None:
    given = (*args, *kwargs.values())
    if len(given) != 1 or not isinstance(given[0], (int, float)) or image.mode != "RGB":
        return None
    if name == "adjust_hue" and not -0.5 <= given[0] <= 0.5:
        return None
    return (name, given, "RGB", image.size, None)


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


def _pad(img: Any, padding: Any, fill: Any = 0, padding_mode: Any = "constant") -> Planned | None:
    sides = sides_of(padding)
    if sides is None or img.mode not in ("RGB", "L"):
        return None
    size = (img.width + sides[0] + sides[2], img.height + sides[1] + sides[3])
    if size[0] * size[1] > 4 * img.width * img.height:
        return None
    if padding_mode == "constant" and fill in (0, None):  # as a crop beyond the edges
        box = (-sides[0], -sides[1], img.width + sides[2], img.height + sides[3])
        return ("crop", (box,), img.mode, size, not any(sides))
    fill = tuple(fill) if isinstance(fill, list) else fill
    return ("pad", (sides, fill, padding_mode), img.mode, size, padding_mode)


_ADJUSTMENTS = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
_IMAGE_STEPS: dict[str, Callable[..., Planned | None]] = {
    **{name: functools.partial(_adjusted, name) for name in _ADJUSTMENTS},
    "to_grayscale": _grayscale,
    "gaussian_blur": _gaussian_blur,
    "pad": _pad,
}


# -- images that become tensors, and tensors ----------------------------------------------------------


def _recording_function(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records what it can, and calls `original` otherwise; other code tells functions by their names."""
    record = _on_tensor if name in _TENSOR_PLANS else _to_tensor

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        fetch = current()
        if fetch is not None and fetch.is_plain:
            image = next(iter((*args, *kwargs.values())), None)
            if isinstance(image, Image.Image) and (node := watch(image, fetch)) is not None:
                fetch.doubt(node)
            with recording(None):
                return original(*args, **kwargs)
        recorded = None if fetch is None or not _can_record(fetch) else record(name, fetch, *args, **kwargs)
        return original(*args, **kwargs) if recorded is None else recorded

    return function


def _can_record(fetch: Fetch) -> bool:
    """Return whether a tensor made now would be a plain one."""
    return fetch.mode is not None and fetch.mode.is_innermost and tensors.makes_plain_tensors()


def _to_tensor(name: str, fetch: Fetch, *args: Any, **kwargs: Any) -> torch.Tensor | None:
    """Return the stand-in for the tensor of a recorded image, laid out as the original function would; None for other values."""
    image, *others = (*args, *kwargs.values(), None)
    scales = name == "to_tensor"
    if not isinstance(image, Image.Image) or len(others) > 1 or (scales and torch.get_default_dtype() is not torch.float32):
        return None
    parent = node_of(image, fetch)
    if parent is None or image.mode not in ("RGB", "L"):
        return None
    fetch.doubt(parent)
    step = Step(parent, name, (), "tensor", image.size, (image.mode, None), site_now())
    channels, (width, height) = 3 if image.mode == "RGB" else 1, image.size
    strides = None if scales and channels == 3 else (1, width * channels, channels)
    dtype = torch.float32 if scales else torch.uint8
    kind = sys.modules[_TV_TENSORS].Image if name == "to_image" else torch.Tensor
    if fetch.is_eager:
        values = tensors.values_now(step, fetch)
        return values if kind is torch.Tensor else values.as_subclass(kind)
    return tensors.stand_in(Derived(step, (channels, height, width), dtype, strides), fetch, kind=kind)


def _on_tensor(name: str, fetch: Fetch, *args: Any, **kwargs: Any) -> torch.Tensor | None:
    """Return the stand-in for what is made of a stand-in; None for other values."""
    if not args or type(args[0]) is not torch.Tensor or id(args[0]) not in fetch.tensors:
        return None
    _, pending = fetch.tensors[id(args[0])]
    made = _TENSOR_PLANS[name](pending, *args[1:], **kwargs)
    return None if made is None else tensors.stand_in(made, fetch, of=pending)


def _to_dtype(known: PendingPixels, dtype: torch.dtype = torch.float32, scale: bool = False) -> Derived | None:
    if not scale:
        return as_float(known, dtype)
    if dtype is not torch.float32 or known.dtype is not torch.uint8:
        return None
    return calculated(known, "v2 to_dtype", (dtype, True), dtype, (dtype, True))


def _normalize(name: str, known: PendingPixels, mean: Any, std: Any, inplace: bool = False) -> Derived | None:
    given = _floats(mean, known.shape[0]), _floats(std, known.shape[0])  # one for all channels is as many that are equal
    if inplace or known.dtype is not torch.float32 or given[0] is None or given[1] is None:
        return None
    return calculated(known, name, given, torch.float32, given) if all(abs(value) > 1e-30 for value in given[1]) else None


def _resized(
    known: PendingPixels, size: Any, interpolation: Any = "bilinear", max_size: int | None = None, antialias: bool | None = True
) -> Derived | None:
    geometry = sys.modules[TENSOR_STEPS["resize_image"].__module__]
    to = tuple(geometry._compute_resized_output_size(known.shape[1:], size=size, max_size=max_size))
    if antialias is not True or to == known.shape[1:]:  # for the same size torchvision returns the image itself
        return None
    return resized(known, to, getattr(interpolation, "value", interpolation))


def _resize_image(image: Image.Image, size: tuple[int, int], filter_: int) -> Image.Image:
    """Return an image resized as transforms.v2 resizes tensors."""
    pixels = TENSOR_STEPS["pil_to_tensor"](image)
    made = TENSOR_STEPS["resize_image"](pixels, [size[1], size[0]], interpolation=filter_, antialias=True)
    return Image.fromarray(made.permute(1, 2, 0).contiguous().numpy())


def _floats(values: Any, number: int) -> tuple[float, ...] | None:
    """Return that many numbers, one for each channel, of as many or of one; None for anything else."""
    if isinstance(values, torch.Tensor):
        if values.dtype is not torch.float32 or values.dim() != 1:
            return None
        values = values.tolist()
    if not isinstance(values, (list, tuple)) or len(values) not in (1, number):
        return None
    if not all(isinstance(value, (int, float)) for value in values):
        return None
    return tuple(map(float, values)) * (number // len(values))


_TENSOR_PLANS: dict[str, Callable[..., Derived | None]] = {  # from a tensor and the other arguments; None: not recorded
    "normalize": functools.partial(_normalize, "normalize"),
    "pad": padded,
    "v2 to_dtype": _to_dtype,
    "v2 normalize": functools.partial(_normalize, "v2 normalize"),
    "v2 pad": lambda known, sides, fill, padding_mode: bordered(known, sides, padding_mode, fill),
    "resize_image": _resized,
}
