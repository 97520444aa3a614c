"""Locate the values of a Parquet column in the file: parse page headers, levels and lengths, decode nothing.

A strict parser of the bytes before and between the values (apache/parquet-format: parquet.thrift, Encodings.md): page
headers, definition levels in the hybrid of runs and bit-packing, and PLAIN byte arrays, each
after its length. Every length must fit into its enclosing structure, so damaged or hostile bytes lead to an error, and neither
time nor memory depends on their claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from datapipe.containers.mapped import ByteSource
from datapipe.containers.parquet.thrift_compact import DamagedError, number_in, read_struct, read_varint

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)  # PageType
_PLAIN, _RLE = 0, 3  # Encoding
DICTIONARIES = frozenset((2, 8))  # PLAIN_DICTIONARY, RLE_DICTIONARY
DELTA_BYTE_ARRAY = 7
WITH_DICTIONARIES = DICTIONARIES | {_PLAIN}  # what most writers go on with when a dictionary is full
# of a PageHeader: kind and sizes; of its data page values, encodings and, in version 2, sizes of levels and is_compressed
_PAGE_HEADER = {1: None, 2: None, 3: None, 5: {1: None, 2: None, 3: None}, 8: {1: None, 4: None, 5: None, 6: None, 7: None}}
_MAX_GROUPS = 1 << 13  # bit-packed levels that are checked together, in eights


class UnaddressableError(Exception):
    """Values, though valid, do not lie in one piece each; the text says why."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column within a row group, as the footer describes it. The column must not be repeated (within lists)."""

    start: int  # of its first page, bytes from the start of the file
    end: int
    num_values: int
    max_level: int  # definition level of a value that is not null
    is_compressed: bool


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a chunk."""

    kind: int
    start: int  # after its header
    end: int
    uncompressed_nbytes: int  # as its header claims
    header: dict[int, Any]


@dataclass(frozen=True, slots=True)
class PlainValues:
    """PLAIN values of a page, one after the other."""

    start: int
    end: int
    num: int


def pages(data: ByteSource, chunk: Chunk) -> Iterator[Page]:
    """Yield the pages of a chunk, whatever they hold. Raises DamagedError."""
    position = chunk.start
    while position < chunk.end:
        header, start = read_struct(data, position, chunk.end, _PAGE_HEADER)
        kind, uncompressed, nbytes = (number_in(header, field) for field in (1, 2, 3))
        if nbytes > chunk.end - start:
            raise DamagedError(f"the page at byte {position} reaches beyond its column")
        yield Page(kind, start, start + nbytes, uncompressed, header)
        position = start + nbytes


def num_values_of(page: Page) -> int:
    """Return how many values a page says that it has, nulls included; none for a page of a dictionary. Raises DamagedError."""
    if page.kind not in (_DATA, _DATA_V2):
        return 0
    return number_in(_within(page.header, 5 if page.kind == _DATA else 8), 1)


def encoding_of_values(page: Page) -> int | None:
    """Return the encoding of a page's values, a number of Parquet's; None for a page without values. Raises DamagedError."""
    if page.kind not in (_DATA, _DATA_V2):
        return None
    return number_in(_within(page.header, 5), 2) if page.kind == _DATA else number_in(_within(page.header, 8), 4)


def plain_values(data: ByteSource, chunk: Chunk) -> Iterator[PlainValues]:
    """Yield the values of a chunk, page by page: all present, none encoded.

    Raises UnaddressableError if they are compressed, encoded or missing, and DamagedError.
    """
    num_found = 0
    for page in pages(data, chunk):
        if page.kind == _DATA:
            values = _values_v1(data, page, chunk, num_found)
        elif page.kind == _DATA_V2:
            values = _values_v2(data, page, chunk, num_found)
        elif page.kind in (_INDEX, _DICTIONARY):
            continue
        else:
            raise DamagedError(f"a page of kind {page.kind} at byte {page.start}")
        num_found += values.num
        if num_found > chunk.num_values:
            break
        yield values
    if num_found != chunk.num_values:
        raise DamagedError(f"the number of values in the pages is not {chunk.num_values}, as the footer says")


def byte_arrays(data: ByteSource, values: PlainValues) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each of the values, which are byte arrays. Raises DamagedError."""
    position, end = values.start, values.end
    for _ in range(values.num):
        if end - position < 4:
            raise DamagedError(f"a page ends at byte {end}, before its last value")
        nbytes = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if nbytes > end - position:
            raise DamagedError(f"the value at byte {position} reaches beyond its page")
        yield position, nbytes
        position += nbytes
    if position != end:
        raise DamagedError(f"bytes are left in a page after its last value, at byte {position}")


def _values_v1(data: ByteSource, page: Page, chunk: Chunk, first: int) -> PlainValues:
    header = _within(page.header, 5)
    num = number_in(header, 1)
    if chunk.is_compressed:
        raise UnaddressableError("compressed")
    _require_plain(page, number_in(header, 2))
    start = page.start
    if chunk.max_level:
        if number_in(header, 3) != _RLE:
            raise UnaddressableError("of a format from before 2013, with bit-packed levels")
        if page.end - start < 4:
            raise DamagedError(f"the page at byte {start} ends within its levels")
        nbytes = int.from_bytes(data[start : start + 4], "little")
        start = _end_of_levels(data, start + 4, nbytes, num, page, chunk, first)
    return PlainValues(start, page.end, num)


def _values_v2(data: ByteSource, page: Page, chunk: Chunk, first: int) -> PlainValues:
    header = _within(page.header, 8)
    num = number_in(header, 1)
    if chunk.is_compressed and header.get(7, True) is not False:
        raise UnaddressableError("compressed")
    _require_plain(page, number_in(header, 4))
    nbytes = number_in(header, 5)
    if number_in(header, 6) or (nbytes and not chunk.max_level):
        raise DamagedError(f"the page at byte {page.start} has levels where its column has none")
    start = _end_of_levels(data, page.start, nbytes, num, page, chunk, first) if chunk.max_level else page.start
    return PlainValues(start, page.end, num)


def _require_plain(page: Page, encoding: int) -> None:
    if encoding != _PLAIN:
        raise UnaddressableError("dictionary-encoded" if encoding in DICTIONARIES else f"encoded (kind {encoding})")
    if page.uncompressed_nbytes != page.end - page.start:
        raise DamagedError(f"the page at byte {page.start} has two sizes")


def _end_of_levels(data: ByteSource, start: int, nbytes: int, num: int, page: Page, chunk: Chunk, first: int) -> int:
    """Return where the levels end. All levels must say that there is a value."""
    end = start + nbytes
    if end > page.end:
        raise DamagedError(f"the levels at byte {start} reach beyond their page")
    width, level = chunk.max_level.bit_length(), chunk.max_level
    position, left = start, num
    while left > 0:
        head, position = read_varint(data, position, end)
        if head & 1:
            position, count, is_there = _packed(data, position, end, min(head >> 1, -(-left // 8)), width, level, left)
        else:
            count, size = head >> 1, (width + 7) // 8
            is_there = int.from_bytes(data[position : min(position + size, end)], "little") == level
            position += size
        if position > end:
            raise DamagedError(f"the levels at byte {start} end too early")
        if not is_there and count:
            rows = f"{first + num - left} to {first + num - 1}"
            raise UnaddressableError(f"null in one of the rows {rows} of a row group (leave such rows out)")
        left -= count
    return end


def _packed(data: ByteSource, position: int, end: int, groups: int, width: int, level: int, left: int) -> tuple[int, int, bool]:
    """Return the position after a run of bit-packed levels, their number, and whether all of them are `level`."""
    count, is_there = groups * 8, True
    if groups * width > end - position:
        raise DamagedError(f"levels at byte {position} end too early")
    remaining = min(count, left)  # the padding of the last group does not count
    while remaining > 0:
        some = min(remaining, _MAX_GROUPS * 8)
        nbytes = -(-some // 8) * width
        bits = int.from_bytes(data[position : position + nbytes], "little") & ((1 << some * width) - 1)
        is_there = is_there and bits == ((1 << some * width) - 1) // ((1 << width) - 1) * level
        position += nbytes
        remaining -= some
    return position, count, is_there


def _within(fields: dict[int, Any], number: int) -> dict[int, Any]:
    value = fields.get(number)
    if not isinstance(value, dict):
        raise DamagedError("a page header without the part that belongs to its kind")
    return value
