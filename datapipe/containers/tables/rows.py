"""Read row groups of tables: some columns of one of them, as Arrow arrays.

A `GroupReader` keeps the latest files open and belongs to one thread. Arrow's own threads are not used: the loader's
threads read several row groups at once.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.core import arrow_maps
from datapipe.core.regular_files import opened_by_name
from datapipe.errors import DecodeError, IntegrityError, MissingDataError, StorageError
from datapipe.index.tables import TableFile, TableGroup
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes, RemoteFile, pin_object

_MAX_OPEN = 8  # files of one reader
_MAX_GAP = 1 << 20  # bytes read for nothing rather than in a request of its own


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


class _OpenTable(Protocol):
    def read(self, number: int) -> Any:
        """Return the row group as a table or record batch."""


class GroupReader:
    """Reads some columns of row groups. Do not share it between threads.

    `columns`: names of the schema, fields of structs dotted. `dictionaries`: those of them to be read as dictionaries if
    they are stored so.
    """

    def __init__(self, columns: Sequence[str], *, dictionaries: Sequence[str] = ()) -> None:
        self._columns = list(columns)
        self._dictionaries = list(dictionaries)
        self._open: OrderedDict[str, _OpenTable] = OrderedDict()

    def read(self, group: TableGroup) -> dict[str, pa.Array]:
        """Return the columns of a row group, by name, each as one array of its rows.

        Raises IntegrityError if the file has changed since it was indexed or a page's checksum differs, DecodeError if its values
        do not decode, MissingDataError or StorageError if it cannot be read.
        """
        file = group.file
        try:
            table = self._opened(file).read(group.number)
        except FileNotFoundError as exc:
            raise MissingDataError(f"{file.path}: no such file any more") from exc
        except (IntegrityError, DecodeError, StorageError):
            raise
        except OSError as exc:
            self._open.pop(file.path, None)
            if exc.errno is not None:
                raise StorageError(exc.errno, exc.strerror, file.path) from exc
            raise _damaged(group, exc) from exc
        except arrow_maps.DAMAGE as exc:
            self._open.pop(file.path, None)
            raise _damaged(group, exc) from exc
        if table.num_rows != group.num_rows:
            raise IntegrityError(
                f"{group}: {table.num_rows} rows are in it, and its file claims {group.num_rows}: damaged; get the file again"
            )
        places = {name: number for number, name in enumerate(table.schema.names)}
        constants = dict(file.constants)
        return {
            name: pa.repeat(constants[name], group.num_rows) if name in constants else _one_array(_column(table, name, places))
            for name in self._columns
        }

    def _opened(self, file: TableFile) -> _OpenTable:
        opened = self._open.get(file.path)
        if opened is None:
            check_unchanged(file)
            opened = self._open[file.path] = self._open_now(file)
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(file.path)
        return opened

    def _open_now(self, file: TableFile) -> _OpenTable:
        constants = dict(file.constants)
        columns = [name for name in self._columns if name not in constants]
        if file.container == "arrow":
            return _OpenArrow(file.path, columns)
        if file.container == "hdf5":
            return _OpenHdf5(file.path, columns)
        return _OpenParquet(file, columns, [name for name in self._dictionaries if name not in constants])


class _OpenParquet:
    """Some columns of a Parquet file, on a disk or in a store. `dictionaries`: columns to be read as such."""

    def __init__(self, file: TableFile, columns: list[str], dictionaries: list[str]) -> None:
        self._path, self._columns, self._dictionaries = file.path, columns, dictionaries
        self._remote: RemoteBytes | None = None
        if is_url(file.path):
            pin_object(file.path, etag=file.etag, nbytes=file.nbytes)  # which another process may have found
            self._remote = RemoteBytes(file.path)
        self._file = self._opened()

    def _opened(self) -> Any:
        remote = None if self._remote is None else RemoteFile(self._remote)
        with opened_by_name(self._path) if remote is None else contextlib.nullcontext(remote) as name:
            return pq.ParquetFile(
                name, read_dictionary=self._dictionaries, pre_buffer=False, page_checksum_verification=True, memory_map=False
            )

    def read(self, number: int) -> Any:
        """Return a row group as a table. Raises StorageError, and what pyarrow raises for damaged files."""
        if self._remote is not None:
            self._remote.fetch(list(_joined(self._chunks(number))))
        try:
            return self._file.read_row_group(number, columns=self._columns, use_threads=False)
        except OSError as exc:
            # Arrow makes no dictionaries of strings in the DELTA encodings, which DuckDB and Spark write. What the footer says of
            # encodings is not asked: of a damaged one, the answer can end the process.
            if exc.errno is not None or not self._dictionaries:
                raise
            self._dictionaries = []
            self._file = self._opened()
            return self._file.read_row_group(number, columns=self._columns, use_threads=False)
        finally:
            if self._remote is not None:
                self._remote.forget()

    def _chunks(self, number: int) -> list[tuple[int, int]]:
        """Start and end of the wanted columns' chunks."""
        group, found = self._file.metadata.row_group(number), []
        for place in range(group.num_columns):
            chunk = group.column(place)
            name = chunk.path_in_schema
            if any(name == column or name.startswith(f"{column}.") for column in self._columns):
                start = chunk.data_page_offset
                if chunk.dictionary_page_offset:
                    start = min(start, chunk.dictionary_page_offset)
                found.append((start, start + chunk.total_compressed_size))
        return sorted(found)


def _joined(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that lie near each other as one."""
    first: tuple[int, int] | None = None
    for start, end in ranges:
        if first is not None and start <= first[1] + _MAX_GAP:
            first = (first[0], max(first[1], end))
            continue
        if first is not None:
            yield first
        first = (start, end)
    if first is not None:
        yield first


class _OpenArrow:
    def __init__(self, path: str, columns: list[str]) -> None:
        data = arrow_maps.map_file(path)
        names = schema_of(data).names
        wanted = [place for place, name in enumerate(names) if any(f"{column}.".startswith(f"{name}.") for column in columns)]
        self._batches = ArrowBatches(data, fields=wanted)

    def read(self, number: int) -> Any:
        batch = self._batches[number]
        batch.validate(full=True)  # offsets of texts and lists, and places in dictionaries: whoever follows wrong ones crashes
        return batch


class _OpenHdf5:
    def __init__(self, path: str, columns: list[str]) -> None:
        from datapipe.containers.hdf5.row_major import GROUP_ROWS, open_rows

        rows = open_rows(path)
        self._group_rows, self._num_rows = GROUP_ROWS, rows.num_rows
        pairs = zip(rows.matrices, rows.arrays, strict=True)
        self._columns = {
            column.name: array[:, number]
            for matrix, array in pairs
            for number, column in enumerate(matrix.columns)
            if column.name in columns
        }

    def read(self, number: int) -> Any:
        here = slice(number * self._group_rows, (number + 1) * self._group_rows)
        return pa.table({name: np.ascontiguousarray(column[here]) for name, column in self._columns.items()})


def check_unchanged(file: TableFile) -> None:
    """Raise IntegrityError if the file is not the one that was indexed."""
    if is_url(file.path):  # its etag is asked for in each request
        return
    status = os.stat(file.path)
    if (status.st_size, status.st_mtime_ns) != (file.nbytes, file.mtime_ns):
        raise IntegrityError(f"{file.path}: was changed since the table was opened; make the loader again")


def _damaged(group: TableGroup, reason: Exception) -> DecodeError | IntegrityError:
    lines = str(reason).strip().splitlines() or [type(reason).__name__]
    if "crc checksum" in lines[0].lower():
        return IntegrityError(f"{group}: a page differs from its checksum; get the file again ({lines[0]:.120})")
    return DecodeError(f"{group}: does not decode ({lines[0]:.160}); get the file again, or pass on_error='skip' or 'replace'")


def _column(table: Any, name: str, places: dict[str, int]) -> Any:
    """Return a column of a table or batch; a field of a struct by its dotted name, null if the struct is.

    `places`: of the columns, by name, as looking one up takes pyarrow long.
    """
    if name in places:
        return table.column(places[name])
    for top, place in places.items():
        if name.startswith(f"{top}."):
            return _field(table.column(place), name[len(top) + 1 :])
    raise IntegrityError(f"column {name!r} is gone; open the table again")


def _field(values: Any, name: str) -> Any:
    arrays = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    parts = []
    for array in arrays:
        kind = array.type
        for number in range(kind.num_fields):
            label = kind.field(number).name
            if label == name or name.startswith(f"{label}."):
                inner = array.flatten()[number]
                parts.append(inner if label == name else _field(inner, name[len(label) + 1 :]))
                break
        else:
            raise IntegrityError(f"field {name!r} is gone; open the table again")
    return pa.chunked_array(parts) if isinstance(values, pa.ChunkedArray) else parts[0]


def _one_array(values: Any) -> pa.Array:
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    if pa.types.is_dictionary(values.type):
        values = values.unify_dictionaries()
    combined = values.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
