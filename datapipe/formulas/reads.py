"""Keep what a function reads besides its arguments, and notice when it has changed."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from datapipe.formulas.values import UnclearCode

CONSTANTS = (int, float, str, bool, type(None))
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Read:
    """Something that the code reads besides its arguments: what `owner` holds by that name, or at that key."""

    owner: Any
    name: Any
    value: Any
    look: Callable[[Any, Any], Any]
    geometry: Any

    def is_unchanged(self) -> bool:
        """Return whether it is still the same object, or an equal constant."""
        try:
            found = self.look(self.owner, self.name)
        except (UnclearCode, AttributeError, LookupError, TypeError, ValueError):
            return False
        if found is self.value:
            return bool(geometry_of(found) == self.geometry)
        return type(found) is type(self.value) and type(found) in CONSTANTS and found == self.value


def of_library(owner: Any, name: str) -> Any:
    """Return an attribute of torch or NumPy."""
    return getattr(owner, name)


def plain_attribute(owner: Any, name: str) -> Any:
    """Return an attribute that reading does not compute. Raises UnclearCode for properties, methods and whatever else may."""
    kind = type(owner)
    reads: Any = kind.__getattribute__
    is_plain = kind is types.SimpleNamespace or reads is object.__getattribute__
    if not is_plain or not hasattr(owner, "__dict__"):
        raise UnclearCode
    of_class = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _MISSING)
    if hasattr(type(of_class), "__get__"):
        raise UnclearCode
    found = vars(owner).get(name, of_class)
    if found is _MISSING:
        raise UnclearCode
    return found


def in_globals(owner: dict[str, Any], name: str) -> Any:
    """Return a global or builtin name's value."""
    return owner[name] if name in owner else vars(builtins)[name]


def in_cell(cell: types.CellType, name: str) -> Any:
    """Return the value of a closure's variable. Raises ValueError if it has none."""
    return cell.cell_contents


def at_key(owner: Any, key: Any) -> Any:
    """Return an item of a dict, list or tuple."""
    return owner[key]


def geometry_of(value: Any) -> Any:
    """Return what may change in an array without its becoming another object."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return value.shape, value.layout
        return value.shape, value.stride(), value.dtype, value.device, value.data_ptr(), value.requires_grad
    return (value.shape, value.strides, value.dtype) if isinstance(value, np.ndarray) else None
