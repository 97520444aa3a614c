"""Read columns of Parquet files with pyarrow: one of a row group, or all of a small one.

The footer and the headers of the column's pages are checked before pyarrow reads, and the memory that it would allocate for a
page is bounded: files that lie about sizes cost no memory.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import mmap
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datapipe.containers.mapped import ByteSource, is_bomb, opened_for_library
from datapipe.containers.parquet.footer import Footer, SchemaLeaf, read_footer
from datapipe.containers.parquet.pages import (
    DELTA_BYTE_ARRAY,
    DICTIONARIES,
    WITH_DICTIONARIES,
    Chunk,
    encoding_of_values,
    pages,
)
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.containers.parquet.values import PYARROW_ERRORS, Form, find_form, value_bytes
from datapipe.core.regular_files import open_file
from datapipe.errors import DecodeError
from datapipe.index.entries import RowGroup
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes, RemoteFile

CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")  # those that pyarrow decompresses
NUMBER_NBYTES = 16  # per row that a page of numbers may take, with the overhead of its encoding
_PAGE_SLACK = 1 << 16
_MAX_VALUES = 1 << 20  # of a chunk of lists, with so many more for each byte of the file
_VALUES_PER_BYTE = 64
_MAX_REPEATED = 1 << 28  # bytes of values that pages may repeat without holding them, if these bytes are not implausible anyway
_BATCH_NBYTES = 1 << 26  # of such values that are decoded at once
_MAX_FOOTERS = 64  # kept parsed


class NoFieldError(Exception):
    """A column cannot be a field; the text says why."""


DAMAGE = (DamagedError, NoFieldError, *PYARROW_ERRORS)


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of a leaf, by their headers: `nbytes`, uncompressed, and that of the `largest`; the `encodings` of values."""

    leaf: SchemaLeaf
    nbytes: int = 0
    largest: int = 0
    encodings: frozenset[int] = frozenset()

    def __add__(self, other: Pages) -> Pages:
        return Pages(self.leaf, self.nbytes + other.nbytes, max(self.largest, other.largest), self.encodings | other.encodings)

    @property
    def is_dictionary(self) -> bool:
        """True if pyarrow can read the values as dictionaries, in which one that repeats is in memory once."""
        is_bytes = self.leaf.physical_type == "BYTE_ARRAY"
        return is_bytes and bool(self.encodings & DICTIONARIES) and self.encodings <= WITH_DICTIONARIES

    @property
    def may_repeat(self) -> bool:
        """True if read values may be much larger than the pages: they name earlier ones, and are no dictionaries in memory."""
        is_bytes = self.leaf.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
        return is_bytes and not self.is_dictionary and bool(self.encodings & (DICTIONARIES | {DELTA_BYTE_ARRAY}))


class ColumnRows:
    """The values of a column, as Arrow has them; see `index.entries.Rows`."""

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
        found: list[Pages] = []
        for leaf in footer.leaves(group.column):
            chunk = next(itertools.islice(footer.chunks(leaf), group.number, None))[0]
            data = read(chunk)
            here = Chunk(0, len(data), chunk.num_values, chunk.max_level, chunk.is_compressed)
            found.append(pages_of(here, data, leaf, file_nbytes=file_nbytes))
    with open_column(again, found) as file:
        table = _read_row_group(file, group.number, group.column, found)
    rows = _rows(table, group.column)
    if len(rows) != len(group):
        raise DamagedError(f"{len(rows)} values for {len(group)} rows")
    return rows


def first_value(path: str, column: str, found: Collection[Pages]) -> tuple[Form, bytes | None]:
    """Return the form of a column's values as a field, and the first of them; None if it is null. Raises DAMAGE.

    Decodes a page or two. Raises NoFieldError for a type that cannot become a field.
    """
    with open_column(path, found) as file:
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
def open_column(path: str | RemoteBytes, found: Iterable[Pages]) -> Iterator[pq.ParquetFile]:
    """The file, by its path or URL, or the object, for reading the leaves of these pages within the block."""
    dictionaries = [one.leaf.path for one in found if one.is_dictionary]
    with (
        opened_for_library(path) if isinstance(path, str) else contextlib.nullcontext(RemoteFile(path)) as name,
        pq.ParquetFile(name, read_dictionary=dictionaries, pre_buffer=False, page_checksum_verification=True) as file,
    ):
        yield file


def _read_row_group(file: pq.ParquetFile, number: int, column: str, found: Iterable[Pages]) -> pa.Table:
    """Return a column of a row group. Raises DamagedError if its values are implausibly larger than its pages."""
    repeating = [one for one in found if one.may_repeat]
    if not repeating or not file.metadata.row_group(number).num_rows:
        return file.read_row_group(number, columns=[column], use_threads=False)
    at_once = max(1, _BATCH_NBYTES // max(1, sum(one.largest for one in repeating)))  # no value is larger than its page
    batches, nbytes, stored = [], 0, sum(one.nbytes for one in repeating)
    for batch in file.iter_batches(at_once, row_groups=[number], columns=[column], use_threads=False):
        batches.append(batch)
        nbytes += batch.nbytes
        if is_bomb(nbytes, stored, plain_nbytes=_MAX_REPEATED):
            raise DamagedError(f"pages of {stored} bytes of column {column!r} claim to hold more than {nbytes} bytes of values")
    return pa.Table.from_batches(batches)


def _rows(table: pa.Table, column: str) -> ColumnRows:
    if table.num_columns != 1:
        raise DamagedError(f"{table.num_columns} columns have this name")
    values, name = table.column(0), table.column_names[0]
    while name != column and pa.types.is_struct(values.type):  # of the image only its bytes
        name += "." + values.type.field(0).name
        values = pc.struct_field(values, 0)
    form = find_form(values.type)
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


def is_believable(footer: Footer, column: SchemaLeaf, data: ByteSource, *, value_nbytes: int) -> bool:
    """Return True if no page of the column claims to be larger than its rows make plausible. Raises DamagedError."""
    return all(
        page.uncompressed_nbytes <= chunk.num_values * value_nbytes + _PAGE_SLACK
        for chunk, _ in footer.chunks(column)
        for page in pages(data, chunk)
    )


def pages_of(chunk: Chunk, data: ByteSource, column: SchemaLeaf, *, file_nbytes: int) -> Pages:
    """Return what the pages of a chunk say of themselves. `data`: the bytes with the chunk, `file_nbytes`: size of its file.

    Raises DamagedError if a size is implausible.
    """
    if column.is_repeated and chunk.num_values > _MAX_VALUES + _VALUES_PER_BYTE * file_nbytes:
        raise DamagedError(f"column {column.path!r} claims {chunk.num_values} values in a file of {file_nbytes} bytes")
    total = largest = 0
    encodings: set[int] = set()
    for page in pages(data, chunk):
        if is_bomb(page.uncompressed_nbytes, page.end - page.start):
            raise DamagedError(f"a page of column {column.path!r} claims {page.uncompressed_nbytes} bytes uncompressed")
        total += page.uncompressed_nbytes
        largest = max(largest, page.uncompressed_nbytes)
        encoding = encoding_of_values(page)
        if encoding is not None:
            encodings.add(encoding)
    return Pages(column, total, largest, frozenset(encodings))


def read_numbers(path: str, column: SchemaLeaf) -> list[int | None]:
    """Return a top-level column of integers, null as None. Raises PYARROW_ERRORS."""
    return [value for values in _each_row_group(path, Pages(column)) for value in values.cast(pa.int64()).to_pylist()]


def read_names(path: str, found: Pages, *, at_most: int) -> list[bytes | None] | None:
    """Return a column of short strings, top-level or in structs; None if one is longer than `at_most`. Raises DAMAGE.

    A long string that repeats costs no memory before it is detected.
    """
    names: list[bytes | None] = []
    for values in _each_row_group(path, found):
        while pa.types.is_struct(values.type):
            values = pc.struct_field(values, 0)
        for piece in values.chunks:
            dictionary = piece.dictionary.cast(pa.binary()) if pa.types.is_dictionary(piece.type) else piece.cast(pa.binary())
            if (pc.max(pc.binary_length(dictionary)).as_py() or 0) > at_most:
                return None
            names += piece.cast(pa.binary()).to_pylist()
    return names


def _each_row_group(path: str, found: Pages) -> Iterator[pa.ChunkedArray]:
    """Yield a column, or what is read of the one that it is a part of, row group by row group."""
    with open_column(path, [found]) as file:
        for number in range(file.num_row_groups):
            yield _read_row_group(file, number, found.leaf.path, [found]).column(0)
