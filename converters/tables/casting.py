"""Cast the values of columns to other types, and find those that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_NO_VALUE = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL")  # words for a missing number


def as_type(array: pa.Array, kind: Any, *, stop_at_first: bool = False) -> tuple[pa.Array, NDArray[np.bool_] | None]:
    """Return the values in a type, and (n,) bool, True for those that do not fit, which are null; None if all fit.

    In text, spaces around a value and a leading plus count for nothing, and words such as NA are null where numbers are wanted.
    `stop_at_first`: only whether all fit matters; the values are good only if they do.
    """
    given = array
    try:
        return _without_overflow(given, _cast(array, kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if pa.types.is_string(array.type):
            array = _tidied(array)
    if pa.types.is_string(kind) and not pa.types.is_nested(array.type):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], kind), None
    try:
        return _without_overflow(given, _cast(array, kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        bad = np.zeros(len(array), np.bool_)
        if stop_at_first:
            return array, bad
    parts: list[pa.Array] = []
    _cast_parts(array, kind, 0, parts, bad)
    typed, beyond = _without_overflow(given, pa.concat_arrays(parts))
    return typed, bad if beyond is None else bad | beyond


def _cast(array: pa.Array, kind: Any) -> pa.Array:
    """Cast safely, but to floating types as text is: rounded to them."""
    return array.cast(kind, safe=not (pa.types.is_integer(array.type) and pa.types.is_floating(kind)))


def _without_overflow(given: pa.Array, typed: pa.Array) -> tuple[pa.Array, NDArray[np.bool_] | None]:
    """Return the values, null where finite ones became infinite, and (n,) bool, True there; None if there are none."""
    if not pa.types.is_floating(typed.type):
        return typed, None
    infinite = pc.fill_null(pc.is_inf(typed), False)
    if not pc.any(infinite).as_py():
        return typed, None
    if pa.types.is_string(given.type):
        meant = pc.match_substring(given, "inf", ignore_case=True)
    elif pa.types.is_floating(given.type):
        meant = pc.is_inf(given)
    else:
        meant = pa.nulls(len(given), pa.bool_())
    beyond = pc.and_(infinite, pc.invert(pc.fill_null(meant, False)))
    if not pc.any(beyond).as_py():
        return typed, None
    return pc.if_else(beyond, pa.scalar(None, typed.type), typed), beyond.to_numpy(zero_copy_only=False)


def _tidied(array: pa.Array) -> pa.Array:
    array = pc.utf8_trim_whitespace(array)
    array = pc.if_else(pc.starts_with(array, "+"), pc.utf8_slice_codeunits(array, 1), array)
    # The array is made here because pa.array imports pandas if that is installed: a fifth of a second for every conversion.
    return pc.if_else(pc.is_in(array, value_set=pa.array(_NO_VALUE)), pa.scalar(None, array.type), array)


def _cast_parts(array: pa.Array, kind: Any, start: int, parts: list[pa.Array], bad: NDArray[np.bool_]) -> None:
    """Cast by halves, down to the single values that do not fit."""
    try:
        parts.append(_cast(array, kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(array) == 1:
            bad[start] = True
            parts.append(pa.nulls(1, kind))
            return
        middle = len(array) // 2
        _cast_parts(array[:middle], kind, start, parts, bad)
        _cast_parts(array[middle:], kind, start + middle, parts, bad)
