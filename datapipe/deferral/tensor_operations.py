"""Record what is calculated with a tensor that has no values yet: cuts, flips, padding, resizes, and arithmetic with numbers.

What moves pixels and what calculates with each of them alone may change places. So a cut of a tensor is recorded as a cut of the
image before it becomes a tensor, and only what remains in the end is decoded and converted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from datapipe.deferral.graph import Step, before_conversion, image_and_conversion
from datapipe.deferral.recorder import PendingPixels, site_now

_FLIPS = {-1: Image.Transpose.FLIP_LEFT_RIGHT, 2: Image.Transpose.FLIP_LEFT_RIGHT} | dict.fromkeys(
    (-2, 1), Image.Transpose.FLIP_TOP_BOTTOM
)
_KEEPS_ZERO = frozenset(("to_tensor", "pil_to_tensor", "to_image", "v2 to_dtype", "float", "mul", "div"))  # of the image
ARITHMETIC = frozenset(("mul", "add", "sub", "rsub", "div"))  # names of steps with one number
OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {  # the functions of torch that steps on tensors stand for, by their names
    **{name: getattr(torch, name) for name in ARITHMETIC},
    "float": torch.Tensor.float,
}
FILTERS = {"bilinear": int(Image.Resampling.BILINEAR), "bicubic": int(Image.Resampling.BICUBIC)}


class Derived(NamedTuple):
    """A tensor that an operation makes of one without values."""

    step: Step
    shape: tuple[int, int, int]
    dtype: torch.dtype
    strides: tuple[int, ...] | None  # None: contiguous
    offset: int | None = None  # a view: where it begins in the memory of the other, in elements; None: memory of its own


Plan = Callable[..., Derived | None]  # from what is known of the tensor, and the function's other arguments; None: not recorded


# -- what moves pixels ---------------------------------------------------------------------------------


def indexed(known: PendingPixels, index: Any) -> Derived | None:
    """Return the view that slices of rows and columns give."""
    indices = list(index) if isinstance(index, tuple) else [index]
    num_dots = sum(one is Ellipsis for one in indices)
    if num_dots > 1 or len(indices) - num_dots > 3:
        return None
    if num_dots:
        at = next(number for number, one in enumerate(indices) if one is Ellipsis)
        indices[at : at + 1] = [slice(None)] * (4 - len(indices))
    indices += [slice(None)] * (3 - len(indices))
    ranges = [_range(one, size) for one, size in zip(indices, known.shape, strict=True)]
    if None in ranges or ranges[0] != (0, known.shape[0]):
        return None
    (top, bottom), (left, right) = ranges[1:]  # type: ignore[misc]
    shape = (known.shape[0], bottom - top, right - left)
    step = before_conversion(known.node, "crop", ((left, top, right, bottom),), (right - left, bottom - top), True, site_now())
    return Derived(step, shape, known.dtype, known.strides, top * known.strides[1] + left * known.strides[2])


def _range(index: Any, size: int) -> tuple[int, int] | None:
    if not isinstance(index, slice):
        return None
    if not all(one is None or isinstance(one, (int, np.integer)) for one in (index.start, index.stop, index.step)):
        return None
    start, stop, stride = index.indices(size)
    return (start, stop) if stride == 1 and stop > start else None


def flipped(known: PendingPixels, *dims: Any) -> Derived | None:
    """Return the tensor with its columns, its rows or both in reversed order."""
    axes = dims[0] if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else dims
    turns = [_FLIPS.get(axis) for axis in axes]
    if None in turns or not turns or len(set(turns)) < len(turns):
        return None
    step = known.node
    for turn in turns:
        step = before_conversion(step, "transpose", (turn,), step.size, int(turn), site_now())  # type: ignore[arg-type]
    return Derived(step, known.shape, known.dtype, dense(known.shape, known.strides))


def padded(known: PendingPixels, padding: Any, fill: Any = None, padding_mode: Any = "constant") -> Derived | None:
    """Return the tensor with a border of one value. Other borders, and values that no pixel has, are not recorded."""
    sides = sides_of(padding)
    fill = 0 if fill is None else fill
    if sides is None or padding_mode != "constant" or type(fill) not in (int, float):
        return None
    left, top, right, bottom = sides
    if not any(sides):  # torch copies it
        return Derived(known.node, known.shape, known.dtype, dense(known.shape, known.strides))
    channels, height, width = known.shape
    size = (width + left + right, height + top + bottom)
    if size[0] * size[1] > 4 * width * height:
        return None
    if fill == 0 and all(step.name in _KEEPS_ZERO for step in image_and_conversion(known.node)[1]):
        box = (-left, -top, width + right, height + bottom)
        step = before_conversion(known.node, "crop", (box,), size, False, site_now())
    elif known.dtype is torch.uint8 and 0 <= fill <= 255 and fill == int(fill):
        arguments = (sides, (int(fill),) * channels if channels > 1 else int(fill), "constant")
        step = before_conversion(known.node, "pad", arguments, size, "constant", site_now())
    else:
        return None
    return Derived(step, (channels, size[1], size[0]), known.dtype, None)


def bordered(known: PendingPixels, pad: Any, mode: Any = "constant", value: Any = None) -> Derived | None:
    """Return the same with the widths in torch's order: left, right, and top and bottom, if there are as many."""
    if not isinstance(pad, (list, tuple)) or len(pad) not in (2, 4):
        return None
    left, right, top, bottom = (*pad, 0, 0)[:4]
    return padded(known, (left, top, right, bottom), value, mode)


def sides_of(padding: Any) -> tuple[int, int, int, int] | None:
    """Return the widths left, top, right and bottom; None unless they are whole numbers from 0 on."""
    widths = list(padding) if isinstance(padding, (list, tuple)) else [padding]
    if not all(isinstance(width, (int, np.integer)) and width >= 0 for width in widths) or len(widths) not in (1, 2, 4):
        return None
    left, top, right, bottom = map(int, (widths * 4)[:4])
    return left, top, right, bottom


def resized(known: PendingPixels, size: tuple[int, int], interpolation: str) -> Derived | None:
    """Return uint8 pixels resized to (height, width) with antialiasing, as transforms.v2 does it: in uint8."""
    channels, height, width = known.shape
    if known.dtype is not torch.uint8 or channels != 3 or interpolation not in FILTERS:
        return None
    filter_, enlarges = FILTERS[interpolation], (size[1] > width, size[0] > height)
    to = size[1], size[0]
    step = before_conversion(known.node, "resize_image", (to, filter_), to, (filter_, enlarges), site_now())
    is_interleaved = known.strides == (1, 3 * width, 3)  # torch then takes it for channels_last, and else for neither
    return Derived(step, (3, *size), torch.uint8, (1, 3 * size[1], 3) if is_interleaved else None)


# -- what calculates with each value alone ---------------------------------------------------------------


def calculated(known: PendingPixels, name: str, args: tuple[Any, ...], dtype: torch.dtype, trait: Any = None) -> Derived:
    """Return the tensor of a step that makes each value of one."""
    step = Step(known.node, name, args, "tensor", known.node.size, trait, site_now())
    return Derived(step, known.shape, dtype, dense(known.shape, known.strides))


def _with_number(name: str, known: PendingPixels, number: Any) -> Derived | None:
    if type(number) not in (int, float) or not math.isfinite(number) or (name == "div" and number == 0):
        return None
    becomes_float = torch.get_default_dtype() is torch.float32 and (name == "div" or type(number) is float)
    if known.dtype is not torch.float32 and not (known.dtype is torch.uint8 and becomes_float):
        return None
    return calculated(known, name, (number,), torch.float32)


def as_float(known: PendingPixels, dtype: Any = torch.float32) -> Derived | None:
    """Return uint8 values as float32, not scaled."""
    if dtype is known.dtype is torch.float32:  # torch returns the tensor itself
        return Derived(known.node, known.shape, known.dtype, known.strides, 0)
    if known.dtype is not torch.uint8 or dtype is not torch.float32:
        return None
    return calculated(known, "float", (), torch.float32)


@functools.lru_cache(maxsize=256)
def dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of what torch calculates of a tensor with these strides, each value of one."""
    return torch.empty_like(torch.empty_strided(shape, strides, dtype=torch.uint8, device="cpu")).stride()


def _plans() -> dict[Any, Plan]:
    found: dict[Any, Plan] = {
        torch.Tensor.__getitem__: indexed,
        torch.Tensor.flip: flipped,
        torch.flip: flipped,
        torch.nn.functional.pad: bordered,
        torch.Tensor.to: as_float,
        torch.Tensor.float: as_float,
        torch.Tensor.__rsub__: functools.partial(_with_number, "rsub"),
    }
    for name in ("mul", "add", "sub", "div"):
        for function in (getattr(torch, name), getattr(torch.Tensor, name)):
            found[function] = functools.partial(_with_number, name)
    return found


PLANS = _plans()  # by the functions that a function mode sees


def planned(function: Any, known: PendingPixels, args: tuple[Any, ...], kwargs: Any) -> Derived | None:
    """Return what `function` makes of a tensor, given its other arguments; None: it needs the values."""
    plan = PLANS.get(function)
    try:
        return None if plan is None else plan(known, *args, **(kwargs or {}))
    except TypeError:  # arguments that no plan knows
        return None
