"""Cut text files into blocks of whole rows, which are read in parallel and found again by their place."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from datapipe.core.errors import FormatError, IntegrityError
from datapipe.core.regular_files import open_file

BLOCK_NBYTES = 8 << 20
_MAX_BLOCK_NBYTES = 1 << 28  # a row that is longer, or a quote that is open for so long, is damage
_BOM = b"\xef\xbb\xbf"
_QUOTE, _NEWLINE = ord('"'), ord("\n")


def blocks_of(path: str, *, start: int, quotes: bool, block_nbytes: int = BLOCK_NBYTES) -> Iterator[tuple[int, int]]:
    """Yield (start, stop), the bytes of consecutive blocks of whole rows, from byte `start` on.

    `quotes`: newlines between double quotes end no row. Raises FormatError for a row of more than 256 MB.
    """
    with open_file(path) as file:
        end = os.fstat(file.fileno()).st_size
        while start < end:
            size = block_nbytes
            while True:
                data = os.pread(file.fileno(), min(size, end - start), start)
                stop = len(data) if start + len(data) >= end else _last_row_end(data, quotes=quotes)
                if stop:
                    break
                if size >= _MAX_BLOCK_NBYTES:
                    what = "a quote is not closed" if quotes and b'"' in data else "a row does not end"
                    raise FormatError(f"{path}: {what} within {size >> 20} MB from byte {start}; repair the file")
                size *= 2
            yield start, start + stop
            start += stop


def _last_row_end(data: bytes, *, quotes: bool) -> int:
    """Return where the last whole row of a block ends; 0 if none does. A block begins outside of quotes."""
    if not quotes or b'"' not in data:
        return data.rfind(b"\n") + 1
    letters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(letters == _NEWLINE)
    num_before = np.searchsorted(np.flatnonzero(letters == _QUOTE), ends)
    outside = ends[num_before % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def read_block(path: str, start: int, stop: int) -> bytes:
    """Return the bytes of a block. Raises IntegrityError if the file has become shorter."""
    with open_file(path) as file:
        data = os.pread(file.fileno(), stop - start, start)
    if len(data) != stop - start:
        raise IntegrityError(f"{path}: became shorter while it was read; restore it")
    return data


def first_row(path: str) -> tuple[bytes, int]:
    """Return the first row of a file, without line end and byte order mark, and where the next rows begin."""
    with open_file(path) as file:
        line = file.readline(1 << 24)
    return line.removeprefix(_BOM).rstrip(b"\r\n"), len(line)


def bom_nbytes(path: str) -> int:
    """Return the length of the byte order mark at the beginning of a file, in bytes."""
    with open_file(path) as file:
        return len(_BOM) if file.read(len(_BOM)) == _BOM else 0
