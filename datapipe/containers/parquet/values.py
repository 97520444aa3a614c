"""Turn Arrow's values into bytes: which types of columns can be fields, of which kind, and in which encoding.

binary                                bytes           numbers, lists of numbers      array (.npy)
string                                text            structs, other lists           json
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldKind, json_bytes
from datapipe.codecs.npy import npy_bytes
from datapipe.errors import DecodeError

# the exceptions that pyarrow raises for damaged files, from its own checks and from the libraries it uses
PYARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)
_NUMBERS = {"halffloat": "f2", "float": "f4", "double": "f8", "bool": "?"}  # by Arrow's names, where numpy's differ
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Form:
    """How values of a type are stored as a field."""

    kind: FieldKind
    to_bytes: Callable[[Any], bytes]  # of a scalar that is not null


def find_form(kind: pa.DataType) -> Form | None:
    """Return the form of a type; None if it cannot become a field: times, decimals, maps, binary within lists."""
    plain = _stored(kind)
    if pa.types.is_dictionary(plain):
        plain = plain.value_type
    if _is_binary(plain):
        return Form(FieldKind.BYTES, _raw)
    if _is_text(plain):
        return Form(FieldKind.TEXT, _raw)
    if (single := _dtype(plain)) is not None:
        return Form(FieldKind.ARRAY, lambda scalar: npy_bytes(np.array(scalar.as_py(), single)))
    dtype, shape = _array_of(plain)
    if dtype is not None:
        return Form(FieldKind.ARRAY, lambda scalar: npy_bytes(_numbers(scalar, dtype, shape)))
    return Form(FieldKind.JSON, _document) if _is_plain(plain, 0) else None


def value_bytes(form: Form, values: pa.Array, row: int) -> bytes:
    """Return a value as bytes. Raises DecodeError for null, which only JSON has, and for a value that does not fit its type."""
    try:
        scalar = values[row]
        while isinstance(scalar, (pa.ExtensionScalar, pa.DictionaryScalar)):
            scalar = scalar.value
        if scalar is not None and scalar.is_valid:
            return form.to_bytes(scalar)
    except (*PYARROW_ERRORS, RecursionError) as exc:
        raise DecodeError(f"value cannot be read: {exc}") from exc
    if form.kind is FieldKind.JSON:
        return b"null"
    raise DecodeError("no value: null")


# -- types -------------------------------------------------------------------------------------------


def _stored(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_binary(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(check(kind) for check in checks)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the dtype of a number type; None for other types."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.dtype(_NUMBERS.get(str(kind), str(kind)))
    return None


def _array_of(kind: pa.DataType) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Return the dtype of a list, or of nested lists of equal lengths, and the shape of a value."""
    shape: tuple[int, ...] = ()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        shape, kind = (-1,), _stored(kind.value_type)
    while pa.types.is_fixed_size_list(kind) and len(shape) < _MAX_DEPTH:
        shape, kind = (*shape, kind.list_size), _stored(kind.value_type)
    return (_dtype(kind), shape) if shape else (None, ())


def _is_plain(kind: pa.DataType, depth: int) -> bool:
    """Return True if JSON can represent such values."""
    plain = _stored(kind)
    if depth > _MAX_DEPTH:
        return False
    if pa.types.is_dictionary(plain):
        return _is_plain(plain.value_type, depth + 1)
    if pa.types.is_struct(plain):
        return all(_is_plain(plain.field(number).type, depth + 1) for number in range(plain.num_fields))
    if _is_list(plain):
        return _is_plain(plain.value_type, depth + 1)
    return _is_text(plain) or _dtype(plain) is not None or pa.types.is_null(plain)


# -- values ------------------------------------------------------------------------------------------


def _raw(scalar: Any) -> bytes:
    return bytes(scalar.as_buffer())


def _document(scalar: Any) -> bytes:
    return json_bytes(scalar.as_py())


def _numbers(scalar: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    values = scalar.values
    for _ in shape[1:]:
        values = values.storage if isinstance(values, pa.ExtensionArray) else values
        values = values.flatten()
    if not len(values):
        return np.empty(0, dtype).reshape(shape)
    if values.null_count or dtype.kind == "b":  # nulls are NaN, or a TypeError; booleans are bits
        return np.array(values.to_pylist(), dtype).reshape(shape)
    plain: NDArray[Any] = np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)
    return plain.reshape(shape)
