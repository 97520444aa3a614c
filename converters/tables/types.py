"""The types of columns: those that the user names, and those that a scan finds from all values.

Facts of blocks are merged in any order. A file of named types maps columns or patterns to types:
`{"I*": "float32", "url": "string"}`.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from converters.tables.casting import as_type
from converters.tables.kinds import EXACT
from datapipe.core.regular_files import read_bytes
from datapipe.errors import FormatError, MissingDataError, OptionError

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_PROBED = 64  # values tried first: most types that are not the column's fail there
_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True)
class Facts:
    """The known facts about the values of a column. `kind`: null if there is no value yet."""

    kind: Any  # pa.DataType
    num_rows: int = 0
    num_nulls: int = 0
    low: int = 0  # of integers, where there are any, those in lists too
    high: int = 0
    nbytes: int = 0  # of texts and lists

    def joined(self, other: Facts, name: str, *, is_text: bool) -> Facts:
        """Return the facts of both. Values without a common type are text if they came as text. Else raises FormatError."""
        try:
            kind = joined(self.kind, other.kind, name)
            if (
                pa.types.is_floating(_innermost(kind))
                and max(abs(end) for one in (self, other) for end in (one.low, one.high)) > EXACT
            ):
                raise FormatError(f"column {name!r} holds integers beyond 2^53 beside floats; name its type in --schema")
        except FormatError:
            if not is_text:
                raise
            kind = pa.string()
        both = [one for one in (self, other) if one.num_rows > one.num_nulls and pa.types.is_integer(_innermost(one.kind))]
        return Facts(
            kind,
            self.num_rows + other.num_rows,
            self.num_nulls + other.num_nulls,
            min((one.low for one in both), default=0),
            max((one.high for one in both), default=0),
            self.nbytes + other.nbytes,
        )

    def target(self) -> Any:
        """Return the type in which the column is written: the smallest integer that holds it, float32 if there is no value."""
        if pa.types.is_null(self.kind):
            return pa.string() if self.nbytes else pa.float32()
        if pa.types.is_integer(self.kind):
            for kind in _INTEGERS:
                limits = np.iinfo(kind.to_pandas_dtype())
                if limits.min <= self.low and self.high <= limits.max:
                    return kind
        return self.kind


def facts_of(array: pa.Array, *, is_text: bool) -> Facts:
    """Return the facts of a block of values. `is_text`: they are text, for which the tightest type is sought."""
    kind = array.type
    if is_text and pa.types.is_string(kind):
        typed = _recognised(array)
        if typed.null_count == len(typed) > array.null_count:  # nothing but words such as NA: numbers elsewhere make them nulls
            return Facts(pa.null(), len(array), len(array), nbytes=array.nbytes)
        return facts_of(typed, is_text=False)
    if pa.types.is_large_string(kind):
        array = array.cast(pa.string())
    low = high = 0
    if array.null_count == len(array):
        return Facts(pa.null(), len(array), len(array))
    if pa.types.is_integer(_innermost(kind)):
        values = array
        while pa.types.is_list(values.type):
            values = values.flatten()
        ends = pc.min_max(values).as_py()
        low, high = ends["min"] or 0, ends["max"] or 0
    return Facts(array.type, len(array), array.null_count, low, high, 0 if _width(kind) else array.nbytes)


def row_nbytes(kind: Any, facts: Facts) -> float:
    """Return the bytes of a row of the column in memory."""
    return float(_width(kind) or facts.nbytes / max(1, facts.num_rows))


def _width(kind: Any) -> int:
    """Return the bytes of a value; 0 if values differ in size."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 0


def joined(one: Any, other: Any, name: str) -> Any:
    """Return the type that holds values of both. Raises FormatError if there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    kinds = (one, other)
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        if all(map(pa.types.is_integer, kinds)):
            return pa.int64() if not any(kind == pa.uint64() for kind in kinds) else pa.uint64()
        return pa.float64()
    if all(map(_is_time, kinds)):
        zones = {getattr(kind, "tz", None) for kind in kinds}
        if len(zones) == 1 or any(map(pa.types.is_date, kinds)):
            units = [getattr(kind, "unit", "s") for kind in kinds]
            return pa.timestamp(max(units, key=_UNITS.index), max(filter(None, zones), default=None))
    if any(map(pa.types.is_string, kinds)) and all(pa.types.is_string(kind) or _is_time(kind) for kind in kinds):
        return pa.string()  # texts of which some look like times
    if all(pa.types.is_list(kind) for kind in kinds):
        return pa.list_(joined(one.value_type, other.value_type, name))
    raise FormatError(f"column {name!r} holds values of type {one} and of type {other}; name its type in --schema")


def _innermost(kind: Any) -> Any:
    """Return the type of the elements of lists, or of lists in them; any other type as it is."""
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind


def _is_time(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


_GUESSES = (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))


def _recognised(array: pa.Array) -> pa.Array:
    """Return the text parsed as the tightest type that fits all of it; the text itself if none does."""
    if array.null_count == len(array):
        return array
    probe = array.drop_null()[:_PROBED]
    for kind in _GUESSES:
        if as_type(probe, kind, stop_at_first=True)[1] is not None:
            continue
        typed, bad = as_type(array, kind, stop_at_first=True)
        if bad is not None:
            continue
        if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and _has_leading_zero(array):
            return array  # such as a postal code
        if pa.types.is_floating(kind) and _has_long_integer(array, typed):
            return array  # a float would round it
        if pa.types.is_boolean(kind) and _has_digit(array):
            return array
        return typed
    return array


def _has_leading_zero(array: pa.Array) -> bool:
    """Return whether digits follow the leading zero of a number, or it is hexadecimal; a blank and a sign may come first."""
    ends = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    letters = np.append(np.frombuffer(array.buffers()[2] or b"", np.uint8), np.zeros(3, np.uint8))
    first, second, third = (letters[ends[:-1] + place] for place in range(3))
    is_led = (first == ord("0")) & (second != ord(".")) & (ends[1:] - ends[:-1] > 1)
    is_led |= ((first == ord("+")) | (first == ord("-"))) & (second == ord("0")) & (third != ord("."))
    places = np.flatnonzero(is_led | (first <= ord(" ")) | (first > 127))  # what comes after a blank is looked at below
    found = pc.utf8_trim_whitespace(array.take(pa.array(places)))
    return bool(pc.any(pc.match_substring_regex(found, "^[+-]?0[0-9xX]")).as_py())


def _has_long_integer(array: pa.Array, typed: pa.Array) -> bool:
    large = pc.greater_equal(pc.abs(typed), float(EXACT))
    found = pc.utf8_trim_whitespace(array.filter(pc.fill_null(large, False)))
    return bool(len(found) and pc.any(pc.match_substring_regex(found, "^[+-]?[0-9]+$")).as_py())


def _has_digit(array: pa.Array) -> bool:
    return bool(pc.any(pc.is_in(pc.utf8_trim_whitespace(array), value_set=pa.array(["0", "1"]))).as_py())


_TYPES: dict[str, Any] = {
    **{name: getattr(pa, name)() for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float16")},
    **{name: getattr(pa, name)() for name in ("float32", "float64", "string", "date32")},
    "bool": pa.bool_(),
    **{f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"timestamp[{unit}, UTC]": pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")},
}
NONE = "none"  # leaves a column out
_LISTS = {f"list<{name}>": pa.list_(kind) for name, kind in _TYPES.items() if name[0] in "if"}


def read_schema(path: Path) -> dict[str, str]:
    """Return type names by column or pattern, in the file's order. Raises FormatError and MissingDataError."""
    try:
        found = json.loads(read_bytes(path))
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file") from exc
    except (ValueError, RecursionError) as exc:
        raise FormatError(f"{path}: not JSON ({exc!s:.100}); write {{column: type}}") from exc
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise FormatError(f'{path}: not an object of types; write such as {{"age": "int32", "C*": "string"}}')
    for name, kind in found.items():
        if kind != NONE:
            type_called(kind, f"{path}: {name!r}")
    return found


def type_called(name: str | None, where: str) -> Any:
    """Return Arrow's type of this name. Raises FormatError for an unknown name."""
    known = {**_TYPES, **_LISTS}
    if name not in known:
        raise FormatError(f"{where}: no type {name!r:.40}; the types are {', '.join(_TYPES)}, list<...> of numbers, and none")
    return known[name]


def types_of(schema: Mapping[str, str], names: Iterable[str]) -> dict[str, Any]:
    """Return the types of the columns that the schema names, by the first pattern that matches."""
    found = {name: _type_name(schema, name) for name in names}
    return {name: type_called(kind, name) for name, kind in found.items() if kind not in (None, NONE)}


def is_left_out(schema: Mapping[str, str], name: str) -> bool:
    """Return True if the schema leaves the column out."""
    return _type_name(schema, name) == NONE


def _type_name(schema: Mapping[str, str], name: str) -> str | None:
    pattern = next((one for one in schema if fnmatch.fnmatchcase(name, one)), None)
    return None if pattern is None else schema[pattern]


def check_used(schema: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise OptionError for a pattern that matches no column."""
    names = list(names)
    for pattern in schema:
        if not fnmatch.filter(names, pattern):
            raise OptionError(f"--schema: no column matches {pattern!r}; there are {', '.join(names)[:200]}")
