"""Parquet files as a container of tables, on a disk or in a store."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

from datapipe.containers.mapped import ByteSource, byte_source
from datapipe.containers.parquet.footer import check_ends
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.containers.tables.claims import check_parquet_rows
from datapipe.containers.tables.container import RowsFound, Wanted
from datapipe.containers.tables.types import columns_of
from datapipe.core.regular_files import opened_by_name
from datapipe.index.tables import TableFile
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes, RemoteFile, pin_object

_MAX_GAP = 1 << 20  # bytes read for nothing rather than in a request of its own


def scan(path: str) -> RowsFound:
    """Return what the footer of a file, or of an object by its URL, says. Raises what pyarrow raises for damaged files."""
    try:
        if is_url(path):
            stored = RemoteBytes(path)
            check_ends(stored)
            with pq.ParquetFile(RemoteFile(stored), pre_buffer=False) as opened:
                return _described(path, opened, stored, etag=stored.object.etag, nbytes=len(stored))
        with byte_source(path, "Parquet") as data, opened_by_name(path) as name:
            check_ends(data)
            with pq.ParquetFile(name, pre_buffer=False) as opened:
                return _described(path, opened, data)
    except DamagedError as exc:
        raise ValueError(str(exc)) from exc


def _described(
    path: str, opened: pq.ParquetFile, data: ByteSource, *, etag: str | None = None, nbytes: int | None = None
) -> RowsFound:
    """Return what the footer of a Parquet file says. Raises DamagedError if it cannot have that many rows."""
    columns, metadata = columns_of(opened.schema_arrow, path), opened.metadata
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    check_parquet_rows(rows, total=metadata.num_rows, data=data)
    return RowsFound(columns, rows, hashlib.sha256(_footer_of(data)).hexdigest(), etag, nbytes)


def _footer_of(data: ByteSource) -> bytes:
    """Return the footer of a Parquet file; fewer bytes where it is none."""
    length = int.from_bytes(data[len(data) - 8 : len(data) - 4], "little")
    return data[max(0, len(data) - 8 - length) : max(0, len(data) - 8)]


def open_groups(file: TableFile, wanted: Wanted) -> _Open:
    """Open some columns of a file. Raises what pyarrow raises for damaged files."""
    return _Open(file, wanted)


class _Open:
    """Some columns of a Parquet file, on a disk or in a store."""

    def __init__(self, file: TableFile, wanted: Wanted) -> None:
        self._path, self._columns, self._dictionaries = file.path, list(wanted.columns), list(wanted.dictionaries)
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
