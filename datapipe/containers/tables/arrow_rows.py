"""Arrow files as a container of tables, in either of Arrow's forms: their batches are its row groups."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from datapipe.containers.tables.claims import check_sizes, measured_field
from datapipe.containers.tables.container import RowsFound, Wanted
from datapipe.containers.tables.types import columns_of
from datapipe.core import arrow_maps
from datapipe.core.printable import listed
from datapipe.errors import FormatError
from datapipe.index.tables import TableFile

_TAIL_NBYTES = 1 << 16  # hashed at either end


def schema_of(data: pa.Buffer) -> pa.Schema:
    """Return the schema of a mapped Arrow file, in either of Arrow's forms. Raises `arrow_maps.DAMAGE` if it does not parse.

    A reader that decodes some columns has the schema of those alone.
    """
    with (pa.ipc.open_file if arrow_maps.is_file(data) else pa.ipc.open_stream)(data) as reader:
        return reader.schema


class ArrowBatches:
    """The record batches of a mapped Arrow file, in either of Arrow's forms. Raises `arrow_maps.DAMAGE` if it does not parse.

    `fields`: places of the columns to decode; None: all. Batches of the stream form are all parsed at once.
    """

    def __init__(self, data: pa.Buffer, *, fields: Sequence[int] | None = None) -> None:
        options = pa.ipc.IpcReadOptions(included_fields=list(fields) if fields else None, use_threads=False)
        self._file: Any = None
        self._batches: list[Any] = []
        if arrow_maps.is_file(data):
            self._file = pa.ipc.open_file(data, options=options)
        else:
            with pa.ipc.open_stream(pa.BufferReader(data), options=options) as reader:
                self._batches = list(reader)

    def __len__(self) -> int:
        return len(self._batches) if self._file is None else int(self._file.num_record_batches)

    def __getitem__(self, number: int) -> Any:
        return self._batches[number] if self._file is None else self._file.get_batch(number)


def scan(path: str) -> RowsFound:
    """Return what a file holds. Raises FormatError, or `arrow_maps.DAMAGE` for one that does not parse."""
    data = arrow_maps.map_file(path)
    check_sizes(data)
    schema = schema_of(data)
    columns, measured = columns_of(schema, path), measured_field(schema)
    if measured is None:
        has = listed(schema.names) or "none"
        raise FormatError(f"{path}: no column whose values take bytes (has: {has}); write the table with one")
    batches = ArrowBatches(data, fields=[measured])  # one column tells how many rows a batch has
    digest = hashlib.sha256(data.slice(0, min(_TAIL_NBYTES, data.size)).to_pybytes())
    digest.update(data.slice(max(0, data.size - _TAIL_NBYTES)).to_pybytes())
    rows = []
    for number in range(len(batches)):
        batch = batches[number]
        batch.validate()  # has the buffers for its rows
        rows.append(batch.num_rows)
    return RowsFound(columns, rows, digest.hexdigest())


class _Open:
    def __init__(self, path: str, columns: Sequence[str]) -> None:
        data = arrow_maps.map_file(path)
        names = schema_of(data).names
        wanted = [place for place, name in enumerate(names) if any(f"{column}.".startswith(f"{name}.") for column in columns)]
        self._batches = ArrowBatches(data, fields=wanted)

    def read(self, number: int) -> Any:
        """Return a batch, validated. Raises `arrow_maps.DAMAGE`."""
        batch = self._batches[number]
        batch.validate(full=True)  # offsets of texts and lists, and places in dictionaries: whoever follows wrong ones crashes
        return batch


def open_groups(file: TableFile, wanted: Wanted) -> _Open:
    """Open the batches of a file. Raises `arrow_maps.DAMAGE`."""
    return _Open(file.path, wanted.columns)
