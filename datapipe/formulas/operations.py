"""The operations of NumPy, torch and Python that a formula may hold, on values that depend on the index."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from datapipe.formulas.reads import CONSTANTS
from datapipe.formulas.values import TORCH_DTYPES, Position, RowValues, UnclearCode


@dataclass(frozen=True, slots=True)
class Known:
    """An object that exists: a constant, an array, a module, a function."""

    value: Any


@dataclass(frozen=True, slots=True)
class Method:
    """A method of values that depend on the index."""

    values: RowValues
    name: str


def unclear() -> Any:
    """Raise UnclearCode."""
    raise UnclearCode


def is_int(value: Any) -> bool:
    """Return whether it is a whole number that does not depend on the index."""
    return isinstance(value, Known) and type(value.value) is int


def constant_of(value: Any) -> Any:
    """Return a number, text, bool or None that does not depend on the index."""
    if isinstance(value, Known) and type(value.value) in CONSTANTS:
        return value.value
    raise UnclearCode


def constant_key(part: Any) -> int | slice:
    """Return a key for one axis of a sample's values: a whole number, or a slice of steps forwards."""
    if isinstance(part, slice):
        bounds = [None if one is None else constant_of(one) for one in (part.start, part.stop, part.step)]
        if not all(type(one) in (int, type(None)) for one in bounds) or (bounds[2] is not None and bounds[2] < 1):
            raise UnclearCode
        return slice(*bounds)
    return int(part.value) if is_int(part) else unclear()


def position_of(value: Any) -> Position:
    """Return a place in an array, counted from its start."""
    if isinstance(value, Position):
        return value
    return Position(0, value.value) if is_int(value) and value.value >= 0 else unclear()


def arithmetic(operation: ast.operator, left: Any, right: Any) -> Any:
    """Return the sum, difference or product of whole numbers, of which one factor is known."""
    if not all(isinstance(one, Position) or is_int(one) for one in (left, right)):
        raise UnclearCode
    a, b = (one if isinstance(one, Position) else Position(0, one.value) for one in (left, right))
    match operation:
        case ast.Add():
            made = Position(a.scale + b.scale, a.offset + b.offset)
        case ast.Sub():
            made = Position(a.scale - b.scale, a.offset - b.offset)
        case ast.Mult() if not a.scale or not b.scale:
            made = Position(a.scale * b.offset + b.scale * a.offset, a.offset * b.offset)
        case _:
            raise UnclearCode
    return made if isinstance(left, Position) or isinstance(right, Position) else Known(made.offset)


def _values(value: Any, *kinds: str) -> RowValues:
    return value if isinstance(value, RowValues) and value.kind in kinds else unclear()


def _dtype_of_numpy(given: Any) -> str:
    try:
        dtype = np.dtype(given.value if isinstance(given, Known) and given.value is not None else unclear())
    except TypeError:
        raise UnclearCode from None
    if dtype.name not in TORCH_DTYPES.values() or not dtype.isnative:
        raise UnclearCode
    return str(dtype.name)


def _dtype_of_torch(given: Any) -> str:
    is_dtype = isinstance(given, Known) and isinstance(given.value, torch.dtype)
    return TORCH_DTYPES[given.value] if is_dtype and given.value in TORCH_DTYPES else unclear()


def _from_numpy(values: Any) -> RowValues:
    return dataclasses.replace(_values(values, "array"), kind="tensor")


def _tensor(values: Any, *, dtype: Any = None) -> RowValues:
    found = _values(values, "array", "scalar", "int")
    made = dataclasses.replace(found, kind="tensor")
    if dtype is None:
        return made
    name = _dtype_of_torch(dtype)
    if found.kind != "array" and not np.can_cast(found.dtype, name, "safe"):
        raise UnclearCode  # a number that does not fit raises an error
    return made.cast("torch", name)


def _as_tensor(values: Any, dtype: Any = None) -> RowValues:
    if isinstance(values, RowValues) and values.kind == "tensor":
        return values if dtype is None else values.cast("torch", _dtype_of_torch(dtype))
    return _tensor(values, dtype=dtype)


def _array(values: Any, dtype: Any = None) -> RowValues:
    found = _values(values, "array")
    return found if dtype is None else found.cast("numpy", _dtype_of_numpy(dtype))


def _int(value: Any) -> Any:
    if isinstance(value, Position) or is_int(value):
        return value
    found = _values(value, "scalar", "tensor", "int")
    if found.shape or found.dtype.kind not in "iub":
        raise UnclearCode
    return found.cast("numpy", "int64", "int")


def _float(value: Any) -> RowValues:
    found = _values(value, "scalar", "tensor", "float", "int")
    return found.cast("numpy", "float64", "float") if not found.shape else unclear()


def _is_tensor(value: Any) -> Known:
    return Known(isinstance(value, RowValues) and value.kind == "tensor") if not isinstance(value, Known) else unclear()


def _dict(**named: Any) -> dict[str, Any]:
    return named


FUNCTIONS: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (torch.from_numpy, _from_numpy), (torch.tensor, _tensor), (torch.as_tensor, _as_tensor), (torch.is_tensor, _is_tensor),
    (np.array, _array), (np.asarray, _array), (np.ascontiguousarray, _array), (int, _int), (float, _float),
    (dict, _dict),
)  # fmt: skip
_TENSOR_CASTS = {
    "long": "int64", "int": "int32", "short": "int16", "half": "float16", "float": "float32", "double": "float64", "bool": "bool",
}  # fmt: skip


def call_method(values: RowValues, name: str, given: list[Any], named: dict[str, Any]) -> Any:
    """Return the result of a method of an array, a NumPy scalar or a tensor."""
    if values.kind in ("array", "scalar") and name == "astype":
        if named.keys() <= {"copy"} and len(given) == 1:
            return values.cast("numpy", _dtype_of_numpy(given[0]))
        if named.keys() == {"dtype"} and not given:
            return values.cast("numpy", _dtype_of_numpy(named["dtype"]))
    if values.kind == "tensor" and name in ("to", "type") and len(given) == 1 and not named:
        return values.cast("torch", _dtype_of_torch(given[0]))
    if given or named:
        raise UnclearCode
    if values.kind == "tensor" and name in _TENSOR_CASTS:
        return values.cast("torch", _TENSOR_CASTS[name])
    if (values.kind, name) in (("array", "copy"), ("tensor", "clone"), ("tensor", "contiguous"), ("tensor", "detach")):
        return values
    if name == "item" and values.kind in ("scalar", "tensor") and values.dtype.kind in "iuf":
        return _float(values) if values.dtype.kind == "f" else _int(values)
    raise UnclearCode
