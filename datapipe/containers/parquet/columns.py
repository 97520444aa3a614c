"""Decode small columns of a Parquet file with pyarrow: labels, names.

The memory that pyarrow would allocate for a page is bounded before it reads one, so that files that lie about sizes
cost no memory.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datapipe.containers.mapped import ByteSource, opened_for_library
from datapipe.containers.parquet.footer import Footer, SchemaLeaf
from datapipe.containers.parquet.pages import Chunk, pages
from datapipe.containers.parquet.thrift_compact import DamagedError

# the exceptions that pyarrow raises for damaged files, from its own checks and from the libraries it uses
PYARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)

CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")  # those that pyarrow decompresses
NUMBER_NBYTES = 16  # per row that a page of numbers may take, with the overhead of its encoding
_PAGE_SLACK = 1 << 16
_MAX_PAGE = 1 << 26  # bytes accepted in any page; larger ones must not be compressed smaller than codecs can make them
_MAX_RATIO = 1100  # deflate's
_MAX_VALUES = 1 << 20  # of a chunk of lists, with so many more for each byte of the file
_VALUES_PER_BYTE = 64


def is_believable(footer: Footer, column: SchemaLeaf, data: ByteSource, *, value_nbytes: int) -> bool:
    """Return True if no page of the column claims to be larger than its rows make plausible. Raises DamagedError."""
    return all(
        page.uncompressed_nbytes <= chunk.num_values * value_nbytes + _PAGE_SLACK
        for chunk, _ in footer.chunks(column)
        for page in pages(data, chunk)
    )


def page_nbytes(chunk: Chunk, data: ByteSource, column: SchemaLeaf, *, file_nbytes: int) -> int:
    """Return the uncompressed size of the pages of a chunk. `data`: the bytes with the chunk, `file_nbytes`: size of its file.

    Raises DamagedError if a size is implausible.
    """
    if column.is_repeated and chunk.num_values > _MAX_VALUES + _VALUES_PER_BYTE * file_nbytes:
        raise DamagedError(f"column {column.path!r} claims {chunk.num_values} values in a file of {file_nbytes} bytes")
    total = 0
    for page in pages(data, chunk):
        if page.uncompressed_nbytes > max(_MAX_PAGE, _MAX_RATIO * (page.end - page.start)):
            raise DamagedError(f"a page of column {column.path!r} claims {page.uncompressed_nbytes} bytes uncompressed")
        total += page.uncompressed_nbytes
    return total


def read_numbers(path: str | Path, column: SchemaLeaf) -> list[int | None]:
    """Return a top-level column of integers, null as None. Raises PYARROW_ERRORS."""
    values: list[int | None] = []
    with opened_for_library(path) as name, pq.ParquetFile(name, pre_buffer=False) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, columns=[column.path], use_threads=False)
            values += table.column(0).cast(pa.int64()).to_pylist()
    return values


def read_names(path: str | Path, column: SchemaLeaf, *, at_most: int) -> list[bytes | None] | None:
    """Return a column of short strings, top-level or in structs; None if one is longer than `at_most`. Raises PYARROW_ERRORS.

    Strings are read as dictionaries, so that a long string that repeats costs no memory before it is detected.
    """
    values: list[bytes | None] = []
    with opened_for_library(path) as name, pq.ParquetFile(name, read_dictionary=[column.path], pre_buffer=False) as file:
        for number in range(file.num_row_groups):
            found = file.read_row_group(number, columns=[column.path], use_threads=False).column(0)
            while pa.types.is_struct(found.type):
                found = pc.struct_field(found, 0)
            for piece in found.chunks:
                dictionary = piece.dictionary.cast(pa.binary()) if pa.types.is_dictionary(piece.type) else piece.cast(pa.binary())
                if (pc.max(pc.binary_length(dictionary)).as_py() or 0) > at_most:
                    return None
                values += piece.cast(pa.binary()).to_pylist()
    return values
