"""Read row groups of Parquet files with pyarrow: one column of one of them.

The footer and the headers of the column's pages are checked before pyarrow reads: see `parquet.columns`.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import mmap
import os
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datapipe.containers.mapped import opened_for_library
from datapipe.containers.parquet.columns import PYARROW_ERRORS, page_nbytes
from datapipe.containers.parquet.footer import Footer, SchemaLeaf, read_footer
from datapipe.containers.parquet.pages import Chunk
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.containers.parquet.values import Form, form_of, value_bytes
from datapipe.core.errors import DecodeError
from datapipe.core.regular_files import open_file
from datapipe.index.entries import RowGroup
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes, RemoteFile

_MAX_FOOTERS = 64  # kept parsed


class NoFieldError(Exception):
    """A column cannot be a field; the text says why."""


DAMAGE = (DamagedError, NoFieldError, *PYARROW_ERRORS)


class ColumnRows:
    """The values of a column, as Arrow has them; see `row_groups.Rows`."""

    __slots__ = ("_ends", "_form", "_pieces", "nbytes")

    def __init__(self, pieces: list[pa.Array], form: Form) -> None:
        self._pieces = pieces
        self._ends = list(itertools.accumulate(map(len, pieces)))
        self._form = form
        self.nbytes = sum(piece.get_total_buffer_size() for piece in pieces)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: int) -> bytes:
        if not 0 <= row < len(self):
            raise DecodeError(f"no row {row} of {len(self)}")
        number = bisect.bisect_right(self._ends, row)
        piece = self._pieces[number]
        return value_bytes(self._form, piece, row - (self._ends[number] - len(piece)))


def read_rows(group: RowGroup) -> ColumnRows:
    """Read one column of a row group. Raises DAMAGE, and OSError with its number if the file cannot be read."""
    with _opened(group.path) as (read, footer, file_nbytes, again):
        if footer.row_starts()[group.number : group.number + 2] != [group.first, group.end]:
            raise DamagedError("its row groups have changed")
        leaves = footer.leaves(group.column)
        for leaf in leaves:
            chunk = next(itertools.islice(footer.chunks(leaf), group.number, None))[0]
            data = read(chunk)
            here = Chunk(0, len(data), chunk.num_values, chunk.max_level, chunk.is_compressed)
            page_nbytes(here, data, leaf, file_nbytes=file_nbytes)
    with open_column(again, leaves) as file:
        table = file.read_row_group(group.number, columns=[group.column], use_threads=False)
    rows = _rows(table, group.column)
    if len(rows) != len(group):
        raise DamagedError(f"{len(rows)} values for {len(group)} rows")
    return rows


def first_value(path: str, column: str, leaves: list[SchemaLeaf]) -> tuple[Form, bytes | None]:
    """Return the form of a column's values as a field, and the first of them; None if it is null. Raises DAMAGE.

    Decodes a page or two. Raises NoFieldError for a type that cannot become a field.
    """
    with open_column(path, leaves) as file:
        batch = next(file.iter_batches(1, columns=[column], use_threads=False), None)
    if batch is None:
        raise DamagedError("no rows")
    table = pa.Table.from_batches([batch])
    rows = _rows(table, column)
    try:
        return rows._form, rows[0]
    except DecodeError:
        return rows._form, None


@contextlib.contextmanager
def open_column(path: str | RemoteBytes, leaves: list[SchemaLeaf]) -> Iterator[pq.ParquetFile]:
    """The file, by its path or URL, or the object, for reading these columns of it within the block.

    Strings that are stored as dictionaries are read as such: one that repeats is in memory once.
    """
    dictionaries = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    with (
        opened_for_library(path) if isinstance(path, str) else contextlib.nullcontext(RemoteFile(path)) as name,
        pq.ParquetFile(name, read_dictionary=dictionaries, pre_buffer=False, page_checksum_verification=True) as file,
    ):
        yield file


def _rows(table: pa.Table, column: str) -> ColumnRows:
    if table.num_columns != 1:
        raise DamagedError(f"{table.num_columns} columns have this name")
    values, name = table.column(0), table.column_names[0]
    while name != column and pa.types.is_struct(values.type):  # of the image only its bytes
        name += "." + values.type.field(0).name
        values = pc.struct_field(values, 0)
    form = form_of(values.type)
    if form is None:
        raise NoFieldError(f"of type {values.type}, which cannot become a field")
    return ColumnRows(values.chunks, form)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[Callable[[Chunk], bytes], Footer, int, str | RemoteBytes]]:
    """What reads a chunk, the footer, the file's size, and what to open it by again."""
    if is_url(path):
        remote = RemoteBytes(path)
        footer = _remote_footer(path, remote.object.etag, len(remote))
        yield lambda chunk: remote[chunk.start : chunk.end], footer, len(remote), remote
        return
    with open_file(path) as plain:
        status = os.fstat(plain.fileno())
        footer = _footer(path, status.st_ino, status.st_size, status.st_mtime_ns)
        yield lambda chunk: _read(plain.fileno(), chunk), footer, status.st_size, path


def _read(descriptor: int, chunk: Chunk) -> bytes:
    """Return the bytes of a chunk; fewer if the file ends before."""
    pieces: list[bytes] = []
    position = chunk.start
    while position < chunk.end and (piece := os.pread(descriptor, chunk.end - position, position)):
        pieces.append(piece)
        position += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@functools.lru_cache(maxsize=_MAX_FOOTERS)
def _footer(path: str, inode: int, nbytes: int, mtime_ns: int) -> Footer:
    """Return the footer of a file; cached while its inode, size and time stay the same."""
    with open_file(path) as plain, mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return read_footer(data)


@functools.lru_cache(maxsize=_MAX_FOOTERS)
def _remote_footer(url: str, etag: str | None, nbytes: int) -> Footer:
    """Of the object of that etag and size."""
    return read_footer(RemoteBytes(url))
