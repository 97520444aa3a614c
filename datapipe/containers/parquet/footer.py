"""Parse the footer of a Parquet file: its columns, and where their chunks lie (apache/parquet-format: parquet.thrift).

This does not use pyarrow, whose access to single values of a damaged footer can end the process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from datapipe.containers.mapped import ByteSource
from datapipe.containers.parquet.pages import Chunk
from datapipe.containers.parquet.thrift_compact import DamagedError, Shape, number_in, read_struct

_MAGIC = b"PAR1"
_END_NBYTES = 8  # the footer's length, the magic bytes
_MAX_FOOTER = 1 << 28  # bytes
_MAX_COLUMNS = 10_000
_MAX_DEPTH = 32  # of the schema
_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_REQUIRED, _REPEATED = 0, 2
_TEXTS = (0, 4, 19)  # converted types UTF8, ENUM, JSON
_LOGICAL_TEXTS = (1, 4, 12)  # logical types STRING, ENUM, JSON

# codec, number of values, compressed size, offsets of the first data page and of the dictionary page, number of nulls
_COLUMN_METADATA: Shape = {4: None, 5: None, 7: None, 9: None, 11: None, 12: {3: None}}
_ROW_GROUP: Shape = {1: {1: None, 3: _COLUMN_METADATA}, 3: None}
_ELEMENT: Shape = {1: None, 3: None, 4: None, 5: None, 6: None, 10: {number: {} for number in _LOGICAL_TEXTS}}
_FOOTER: Shape = {2: _ELEMENT, 3: None, 4: _ROW_GROUP, 5: {1: None, 2: None}}


@dataclass(frozen=True, slots=True)
class SchemaLeaf:
    """A leaf of the schema."""

    number: int
    name: str  # of the whole column to which the leaf belongs
    path: str  # names from the root, with dots between them
    physical_type: str  # "BYTE_ARRAY", "INT64", ...
    is_text: bool
    max_level: int  # definition level of a value that is not null
    is_repeated: bool


@dataclass(frozen=True, slots=True)
class Footer:
    """The contents of a file's footer."""

    num_rows: int
    columns: tuple[SchemaLeaf, ...]
    metadata: dict[bytes, bytes]
    row_groups: list[dict[int, Any]]  # as read
    nbytes: int  # of the file before the footer

    def row_starts(self) -> list[int]:
        """Return the rows at which row groups begin, and the number of rows. Raises DamagedError.

        The count is accepted only if every row takes at least a byte of the file.
        """
        starts = [0, *itertools.accumulate(number_in(group, 3) for group in self.row_groups)]
        if starts[-1] != self.num_rows or self.num_rows > self.nbytes:
            raise DamagedError(f"it tells of {self.num_rows} rows, its row groups of {starts[-1]}, in {self.nbytes} bytes")
        return starts

    def leaves(self, path: str) -> list[SchemaLeaf]:
        """Return the column of that path, or its leaves."""
        return [column for column in self.columns if column.path == path or column.path.startswith(f"{path}.")]

    def null_counts(self) -> dict[str, int]:
        """Return how many nulls each column has, by path, for columns of which every row group says so. Raises DamagedError."""
        counts: dict[str, int] = {}
        for column in self.columns:
            stated = [_metadata(group, column, number).get(12, {}).get(3) for number, group in enumerate(self.row_groups)]
            if all(type(count) is int and count >= 0 for count in stated):
                counts[column.path] = sum(stated)
        return counts

    def chunks(self, column: SchemaLeaf) -> Iterator[tuple[Chunk, str]]:
        """Yield a column's chunks, one per row group, each with the name of its codec. Raises DamagedError.

        They must follow each other in the file, so that no value is counted twice.
        """
        position = 0
        for number, group in enumerate(self.row_groups):
            where = _place(column, number)
            chunk, codec = _chunk(_metadata(group, column, number), column)
            if chunk.start < position:
                raise DamagedError(f"{where} overlaps the data before it")
            if chunk.end > self.nbytes:
                raise DamagedError(f"{where} reaches beyond the end: the file was cut")
            if chunk.num_values != number_in(group, 3) and not column.is_repeated:
                raise DamagedError(f"{where} has {chunk.num_values} values for {group[3]} rows")
            yield chunk, codec
            position = chunk.end


def check_ends(data: ByteSource) -> None:
    """Raise DamagedError for bytes that do not begin and end as a Parquet file."""
    size = len(data)
    if size < len(_MAGIC) + _END_NBYTES or data[:4] != _MAGIC or data[size - 4 : size] != _MAGIC:
        if data[size - 4 : size] == b"PARE":
            raise DamagedError("its footer is encrypted")
        was_cut = "it begins with 'PAR1' and does not end so: it was cut"
        raise DamagedError(was_cut if data[:4] == _MAGIC else "it does not begin and end with 'PAR1'")


def read_footer(data: ByteSource) -> Footer:
    """Parse the footer of the file in `data`. Raises DamagedError, also if it is not a Parquet file."""
    check_ends(data)
    size = len(data)
    nbytes, end = int.from_bytes(data[size - 8 : size - 4], "little"), size - _END_NBYTES
    if nbytes > min(end - len(_MAGIC), _MAX_FOOTER):
        raise DamagedError(f"its footer of {nbytes} bytes is longer than the file, or implausibly long")
    fields, _ = read_struct(data, end - nbytes, end, _FOOTER)
    pairs = [(pair.get(1), pair.get(2)) for pair in _list(fields, 5)]
    return Footer(
        num_rows=number_in(fields, 3),
        columns=_leaves(_list(fields, 2)),
        metadata={key: value for key, value in pairs if isinstance(key, bytes) and isinstance(value, bytes)},
        row_groups=_list(fields, 4),
        nbytes=end - nbytes,
    )


def _place(column: SchemaLeaf, row_group: int) -> str:
    return f"column {column.path!r} of row group {row_group}"


def _metadata(group: dict[int, Any], column: SchemaLeaf, row_group: int) -> dict[int, Any]:
    """Return the metadata of a column's chunk. Raises DamagedError."""
    columns, where = _list(group, 1), _place(column, row_group)
    if column.number >= len(columns):
        raise DamagedError(f"{where} is missing")
    found = columns[column.number]
    if found.get(1):
        raise DamagedError(f"{where} lies in another file, {found[1]!r}")
    facts = found.get(3)
    if not isinstance(facts, dict):
        raise DamagedError(f"{where} has no metadata")
    return facts


def _chunk(facts: dict[int, Any], column: SchemaLeaf) -> tuple[Chunk, str]:
    start, dictionary = number_in(facts, 9), facts.get(11)
    if type(dictionary) is int and 0 < dictionary < start:
        start = dictionary
    codec = number_in(facts, 4)
    name = _CODECS[codec] if codec < len(_CODECS) else f"codec {codec}"
    end = start + number_in(facts, 7)
    return Chunk(start, end, number_in(facts, 5), column.max_level, is_compressed=codec != 0), name


def _leaves(elements: list[dict[int, Any]]) -> tuple[SchemaLeaf, ...]:
    """Return the leaves of the schema, which is listed depth first."""
    if not 0 < len(elements) <= _MAX_COLUMNS:
        raise DamagedError(f"its schema has {len(elements)} elements")
    leaves: list[SchemaLeaf] = []
    rest = iter(elements)

    def walk(num: int, path: tuple[str, ...], max_level: int, *, is_repeated: bool) -> None:
        for _ in range(num):
            element = next(rest, None)
            if element is None or len(path) >= _MAX_DEPTH:
                raise DamagedError("its schema is cut, or too deep")
            repetition, name = element.get(3, _REQUIRED), element.get(4, b"")
            if not isinstance(name, bytes):
                raise DamagedError(f"its schema has an element called {name!r}")
            here = (*path, name.decode(errors="backslashreplace"))
            level, repeated = max_level + (repetition != _REQUIRED), is_repeated or repetition == _REPEATED
            if element.get(5):
                walk(number_in(element, 5), here, level, is_repeated=repeated)
            else:
                leaves.append(_leaf(len(leaves), here, element, level, repeated))

    walk(number_in(elements[0], 5) if next(rest) else 0, (), 0, is_repeated=False)
    return tuple(leaves)


def _leaf(number: int, path: tuple[str, ...], element: dict[int, Any], max_level: int, is_repeated: bool) -> SchemaLeaf:
    kind = number_in(element, 1)
    logical = element.get(10)
    is_text = element.get(6) in _TEXTS or (isinstance(logical, dict) and any(text in logical for text in _LOGICAL_TEXTS))
    name = _TYPES[kind] if kind < len(_TYPES) else f"type {kind}"
    return SchemaLeaf(number, path[0], ".".join(path), name, is_text, max_level, is_repeated)


def _list(fields: dict[int, Any], number: int) -> list[dict[int, Any]]:
    found = fields.get(number, [])
    if not isinstance(found, list):
        raise DamagedError(f"field {number} of the footer is no list")
    return found
