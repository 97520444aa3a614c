"""Small columns of a Parquet file, decoded by pyarrow: labels, names.

What pyarrow would allocate for a page is bounded before it is asked to read one, so that files that lie about sizes
cost no memory.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datapipe.containers.mapped import opened_for_library
from datapipe.containers.parquet.footer import Column, Footer
from datapipe.containers.parquet.pages import Chunk, pages
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.core.byte_source import ByteSource

# what pyarrow raises for damaged files, from its own checks and from what it is built on
PYARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)

CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")  # that pyarrow decompresses
NUMBER_NBYTES = 16  # per row that a page of numbers may take, its encoding's own bytes included
_PAGE_SLACK = 1 << 16
_MAX_PAGE = 1 << 26  # bytes that any page may have; larger ones must not be smaller compressed than any codec makes them
_MAX_RATIO = 1100  # deflate's
_MAX_VALUES = 1 << 20  # of a chunk of lists, and so many more for each byte of the file
_VALUES_PER_BYTE = 64


def is_believable(footer: Footer, column: Column, data: ByteSource, *, value_nbytes: int) -> bool:
    """Whether no page of the column claims to be larger than its rows make plausible. Raises DamagedError."""
    return all(
        page.uncompressed_nbytes <= chunk.num_values * value_nbytes + _PAGE_SLACK
        for chunk, _ in footer.chunks(column)
        for page in pages(data, chunk)
    )


def page_nbytes(chunk: Chunk, data: ByteSource, column: Column, *, file_nbytes: int) -> int:
    """What the pages of a chunk take uncompressed. `data`: what holds the chunk, `file_nbytes`: the size of its whole file.

    Raises DamagedError where a size is not believed.
    """
    if column.is_repeated and chunk.num_values > _MAX_VALUES + _VALUES_PER_BYTE * file_nbytes:
        raise DamagedError(f"column {column.path!r} claims {chunk.num_values} values in a file of {file_nbytes} bytes")
    total = 0
    for page in pages(data, chunk):
        if page.uncompressed_nbytes > max(_MAX_PAGE, _MAX_RATIO * (page.end - page.start)):
            raise DamagedError(f"a page of column {column.path!r} claims {page.uncompressed_nbytes} bytes uncompressed")
        total += page.uncompressed_nbytes
    return total


def read_numbers(path: str | Path, column: Column) -> list[int | None]:
    """A top-level column of integers, null as None. Raises PYARROW_ERRORS."""
    values: list[int | None] = []
    with opened_for_library(path) as name, pq.ParquetFile(name, pre_buffer=False) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, columns=[column.path], use_threads=False)
            values += table.column(0).cast(pa.int64()).to_pylist()
    return values


def read_names(path: str | Path, column: Column, *, at_most: int) -> list[bytes | None] | None:
    """A column of short strings, top-level or in structs; None if one is longer than `at_most` bytes. Raises PYARROW_ERRORS.

    Read as dictionaries, so that a long string that is repeated costs no memory before it is seen to be one.
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
