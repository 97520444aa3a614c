"""Map the types of Arrow's columns to values, and merge the schemas of several files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from datapipe.containers.field_names import IMAGE_COLUMNS
from datapipe.errors import FormatError
from datapipe.index.tables import ColumnKind, TableColumn

# torch computes little with the unsigned types above uint8.
_SIGNED = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
_BYTES = ("binary", "large_binary", "binary_view")
_UNITS = ("s", "ms", "us", "ns")


def leaves_of(schema: Any) -> Iterator[TableColumn]:
    """Yield the columns of a schema, structs flattened to their fields."""
    for field in schema:
        yield from _leaves(field.name, field.type)


def columns_of(schema: Any, path: str) -> dict[str, TableColumn]:
    """Return the columns of a file's schema by name. Raises FormatError if two have the same name."""
    columns: dict[str, TableColumn] = {}
    for column in leaves_of(schema):
        if column.name in columns:
            raise FormatError(f"{path}: two columns are named {column.name!r}; write the file again with a name for each")
        columns[column.name] = column
    return columns


def _leaves(name: str, kind: Any) -> Iterator[TableColumn]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)
    else:
        yield column_of(name, kind)


def column_of(name: str, kind: Any) -> TableColumn:
    """Return the table column for a column of this type."""
    text = str(kind)
    if pa.types.is_dictionary(kind):
        inner = column_of(name, kind.value_type)
        return TableColumn(name, inner.kind, text, inner.dtype, inner.unit)
    if pa.types.is_boolean(kind):
        return TableColumn(name, ColumnKind.NUMBER, text, "bool")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        dtype = np.dtype(kind.to_pandas_dtype()).name
        return TableColumn(name, ColumnKind.NUMBER, text, _SIGNED.get(dtype, dtype))
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        return TableColumn(name, ColumnKind.NUMBER, text, "int64", kind.unit)
    if pa.types.is_date32(kind):
        return TableColumn(name, ColumnKind.NUMBER, text, "int32", "d")
    if pa.types.is_date64(kind):
        return TableColumn(name, ColumnKind.NUMBER, text, "int64", "ms")
    if pa.types.is_decimal(kind):
        return TableColumn(name, ColumnKind.DECIMAL, text)
    if _is_text(kind):
        return TableColumn(name, ColumnKind.TEXT, text)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        items = column_of(name, kind.value_type)
        if items.kind is ColumnKind.NUMBER:
            return TableColumn(name, ColumnKind.LIST, text, items.dtype, items.unit)
    return TableColumn(name, ColumnKind.UNREAD, text)


def holds_bytes(column: TableColumn) -> bool:
    """Return True if a column holds bytes that are no text, as those of encoded images; of one size only if it is called so."""
    kind = column.type.removeprefix("dictionary<values=").partition(",")[0]
    return kind in _BYTES or (kind.startswith("fixed_size_binary") and column.name.lower() in IMAGE_COLUMNS)


def _is_text(kind: Any) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(check(kind) for check in checks)


def merged(schemas: Sequence[tuple[str, Mapping[str, TableColumn]]]) -> tuple[tuple[TableColumn, ...], tuple[str, ...]]:
    """Merge the schemas of files. Returns one schema, and lines that say what was widened. `schemas`: (path, columns by name).

    Columns keep the order of the files. Integers become the larger integer type, floating numbers likewise, times
    the finer unit. Raises FormatError, naming a column and two files, for types neither of which holds the other.
    """
    found: dict[str, TableColumn] = {}
    first_in: dict[str, str] = {}
    widened: dict[str, str] = {}
    for path, columns in schemas:
        for name, column in columns.items():
            if name not in found:
                found[name], first_in[name] = column, path
                continue
            wider = _wider(found[name], column)
            if wider is None:
                raise FormatError(
                    f"{path}: column {name!r} is {column.type}, in {first_in[name]} it is {found[name].type}; write the files "
                    "with one schema, or open them separately"
                )
            if wider != found[name] or wider != column:
                widened[name] = f"{name}: {wider.dtype}{' ' + wider.unit if wider.unit else ''}, as the files differ"
            found[name] = wider
    return tuple(found.values()), tuple(widened[name] for name in found if name in widened)


def _wider(one: TableColumn, other: TableColumn) -> TableColumn | None:
    """Return a column that holds the values of both exactly; None if there is none."""
    if one.kind is not other.kind:
        return None
    if one.type == other.type or one.kind is ColumnKind.TEXT:
        return one
    if not one.dtype:  # decimals of other scales, maps
        return None
    if (one.unit == "") != (other.unit == "") or ("d" in (one.unit, other.unit) and one.unit != other.unit):
        return None
    kinds = {np.dtype(one.dtype).kind, np.dtype(other.dtype).kind}
    if len(kinds) > 1:
        return None
    dtype = np.promote_types(one.dtype, other.dtype).name
    unit = max(one.unit, other.unit, key=_UNITS.index) if one.unit not in ("", "d") else one.unit
    if (dtype, unit) == (one.dtype, one.unit):
        return one
    return TableColumn(one.name, one.kind, other.type, dtype, unit)
