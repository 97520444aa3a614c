"""Checks of the arguments of transforms, and the source form of a transform.

Every check returns the value in one canonical form, so that equal meanings compare equal. It raises OptionError with the
name of the transform, the argument, the value passed and the accepted values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from datapipe.errors import OptionError
from datapipe.transforms.protocols import Interpolation

Range = tuple[float, float]
Fill = tuple[int, int, int]


def refusal(owner: object, argument: str, got: object, expected: str) -> OptionError:
    """Return the error for `got` as `argument` of `owner`; `expected` says which values are accepted."""
    return OptionError(f"{type(owner).__name__}: {argument} is {got!r}; {expected}")


def is_number(value: object) -> bool:
    """Return True if value is a finite int or float (booleans are neither)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: object) -> bool:
    """Return True if value is an int of at least 1, as a number of pixels of 32 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31


def check_size(owner: object, size: object, *, argument: str = "size") -> tuple[int, int]:
    """Return (height, width) in pixels for one int (a square), (s,), or (height, width)."""
    expected = "it must be a positive int, or (height, width)"
    if is_count(size):
        return (int(size), int(size))  # type: ignore[call-overload]
    if isinstance(size, Sequence) and not isinstance(size, str) and len(size) in (1, 2) and all(map(is_count, size)):
        return (int(size[0]), int(size[-1]))
    raise refusal(owner, argument, size, expected)


def check_range(owner: object, argument: str, value: object, *, least: float, most: float = math.inf) -> Range:
    """Return (low, high) with least <= low <= high <= most."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2 and all(map(is_number, value)):
        low, high = float(value[0]), float(value[1])
        if least <= low <= high <= most:
            return (low, high)
    bounds = f"{least:g} <= low <= high" + (f" <= {most:g}" if most < math.inf else "")
    raise refusal(owner, argument, value, f"it must be (low, high) with {bounds}")


def check_probability(owner: object, value: object) -> float:
    """Return a number in [0, 1]."""
    if is_number(value) and 0 <= value <= 1:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    raise refusal(owner, "p", value, "it must be a probability between 0 and 1")


def check_fill(owner: object, value: object) -> Fill:
    """Return (red, green, blue) for one number, or one per channel, 0 to 255. None is 0, as in torchvision."""
    if value is None:
        return (0, 0, 0)
    values: Sequence[object] = [value] if is_number(value) else value if isinstance(value, Sequence) else ()
    if len(values) in (1, 3) and all(is_number(v) and 0 <= v <= 255 and v == int(v) for v in values):  # type: ignore
        red, green, blue = [int(v) for v in values] * (3 // len(values))  # type: ignore[call-overload]
        return (red, green, blue)
    raise refusal(owner, "fill", value, "it must be a whole number from 0 to 255, or three of them for red, green and blue")


def check_interpolation(owner: object, interpolation: object, antialias: object) -> Interpolation:
    """Return the canonical name for torchvision's forms of "bilinear" and "bicubic" with antialiasing; refuse all others."""
    name = getattr(interpolation, "value", interpolation)
    if antialias is not True:
        raise refusal(owner, "antialias", antialias, "resizing is always antialiased, as PIL's is; drop the argument")
    if name in ("bilinear", 2):  # the numbers are PIL's constants
        return "bilinear"
    if name in ("bicubic", 3):
        return "bicubic"
    raise refusal(owner, "interpolation", interpolation, "only 'bilinear' and 'bicubic' are available; pass one of them")


def check_constant_padding(owner: object, padding_mode: object) -> str:
    """Accept padding_mode='constant' only."""
    if padding_mode != "constant":
        raise refusal(owner, "padding_mode", padding_mode, "only 'constant' is available; drop the argument")
    return "constant"


def check_uint8(owner: object, dtype: torch.dtype) -> torch.dtype:
    """Return `dtype` if it is uint8, else raise OptionError."""
    if dtype != torch.uint8:
        got = str(dtype).removeprefix("torch.")
        raise OptionError(f"{owner!r} works on uint8 images, but gets {got} images; put it before ToDtype")
    return dtype


def source_repr(transform: object) -> str:
    """Return the call that makes an equal transform: required arguments by position, then those that differ from the default."""
    parts = []
    for field in dataclasses.fields(transform):  # type: ignore[arg-type]
        if not field.init:
            continue
        value = getattr(transform, field.name)
        square = field.metadata.get("square") and value[0] == value[1]
        shown = repr(value[0] if square else value)
        if field.default is dataclasses.MISSING:
            parts.append(shown)
        elif value != field.default:
            parts.append(f"{field.name}={shown}")
    return f"{type(transform).__name__}({', '.join(parts)})"
