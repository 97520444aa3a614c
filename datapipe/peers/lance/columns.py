"""Columns of a Lance dataset: which can be fields, and their values by rows. Blobs are columns of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from datapipe.codecs.field_values import FieldKind
from datapipe.containers.parquet.values import Form, find_form, value_bytes
from datapipe.errors import DecodeError
from datapipe.peers.lance.library import LanceError, asked

_BLOB = b"lance-encoding:blob"  # of a field's metadata, in either form of blobs
_BLOB_TYPE = "lance.blob"


@dataclass(frozen=True, slots=True)
class LanceColumn:
    """A column, or the `bytes` of a column of structs, as Hugging Face stores images."""

    name: str  # as the library takes it, dotted
    called: str  # of the column
    type: Any
    is_blob: bool
    form: Form | None  # None: it can be no field


def columns_of(schema: Any) -> list[LanceColumn]:
    """Return the columns of a dataset."""
    return [_column(field) for field in schema]


def _column(field: Any) -> LanceColumn:
    if is_blob(field):
        return LanceColumn(field.name, field.name, pa.large_binary(), True, find_form(pa.large_binary()))
    kind = field.type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and (inner := kind.field("bytes").type) is not None:
        form = find_form(inner)
        if form is not None and form.kind is FieldKind.BYTES:
            return LanceColumn(f"{field.name}.bytes", field.name, inner, False, form)
    return LanceColumn(field.name, field.name, kind, False, find_form(kind))


def is_blob(field: Any) -> bool:
    """Return whether a column holds blobs, which lie apart from its pages."""
    named = str(getattr(field.type, "extension_name", ""))
    return named.startswith(_BLOB_TYPE) or (field.metadata or {}).get(_BLOB) == b"true"


def column_named(schema: Any, name: str) -> LanceColumn:
    """Return a column by the library's name for it. Raises LanceError if there is none that can be a field."""
    found = next((one for one in columns_of(schema) if one.name == name), None)
    if found is None or found.form is None:
        raise LanceError(f"no column {name!r} that can be read")
    return found


def take(dataset: Any, column: LanceColumn, rows: Sequence[int]) -> list[bytes | DecodeError]:
    """Return the values of rows by their numbers, errors in the place of those that are none. Raises LanceError."""
    if column.is_blob:
        blobs = asked(lambda: dataset.read_blobs(column.name, indices=list(rows), preserve_order=True))
        found: list[bytes | DecodeError] = [DecodeError("no value: null") if data is None else data for _, data in blobs]
    else:
        table = asked(lambda: dataset.take(list(rows), columns=[column.name]))
        found = values_of(table.column(0), column)
    if len(found) != len(rows):
        raise LanceError(f"{len(found)} values for {len(rows)} rows")
    return found


def scan(dataset: Any, column: LanceColumn, first: int, num: int) -> list[bytes | DecodeError]:
    """Return the values of rows that follow one another, as `take` does."""
    if column.is_blob:
        return take(dataset, column, range(first, first + num))
    table = asked(lambda: dataset.scanner(columns=[column.name], offset=first, limit=num).to_table())
    if table.num_rows != num:
        raise LanceError(f"{table.num_rows} values for {num} rows")
    return values_of(table.column(0), column)


def values_of(values: Any, column: LanceColumn) -> list[bytes | DecodeError]:
    """Return the values of an Arrow column as bytes."""
    assert column.form is not None
    found: list[bytes | DecodeError] = []
    for chunk in values.chunks:
        piece = chunk.field("bytes") if column.name != column.called and pa.types.is_struct(chunk.type) else chunk
        for row in range(len(piece)):
            try:
                found.append(value_bytes(column.form, piece, row))
            except DecodeError as exc:
                found.append(exc)
    return found
