"""Read the types that a user names: a JSON file of column names or patterns and types, `{"I*": "float32", "url": "string"}`."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from datapipe.core.errors import FormatError, MissingDataError, OptionError
from datapipe.core.regular_files import read_bytes

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
