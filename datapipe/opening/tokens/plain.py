"""Read bare arrays of token ids, such as nanoGPT's `train.bin` and OLMo's `.npy`: a token that ends each document divides them.

The ends of documents are found by reading the whole file once, and kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from datapipe.codecs.npy import NPY_MAGIC, read_npy_header
from datapipe.codecs.tokens import READ_DTYPES, TokenFacts
from datapipe.core import atomic
from datapipe.core.regular_files import open_file, read_bytes
from datapipe.core.user_cache import INDEXES, index_directory
from datapipe.core.waiting import reported_wait
from datapipe.errors import DecodeError, FormatError, MissingDataError, OptionError, StorageError
from datapipe.index.tokens import ShardFacts, TokenShard

_READ_NBYTES = 1 << 24
_HEADER_NBYTES = 1 << 12
_MAGIC_NBYTES = 32  # with the first name in it


def look(path: Path, dtype: str | None, eos: int | None) -> ShardFacts:
    """Return what a file holds. `eos`: ends each document; None: the file is one.

    `dtype`: of an id; None: that of a file with numpy's header. Raises MissingDataError, StorageError, OptionError for a file
    without a header if no dtype is given, FormatError for a size that is no whole number of tokens.
    """
    try:
        with open_file(path) as file:
            head = file.read(_HEADER_NBYTES)
            status = os.fstat(file.fileno())
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such file; check the path") from exc
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be read ({exc.strerror})") from exc
    start, end = 0, status.st_size
    if head.startswith(NPY_MAGIC):
        start, end, dtype = _array(path, head, end)
    elif NPY_MAGIC[1:] in head[:_MAGIC_NBYTES] or b"'descr'" in head[:_MAGIC_NBYTES]:
        raise FormatError(f"{path}: begins like numpy's header, which is damaged; save it again")
    if dtype is None:
        raise OptionError(
            f"{path}: a bare file of token ids does not say their type; pass dtype='uint16', and eos= if it has one"
        )
    stored = TokenFacts(dtype).stored
    if (end - start) % stored.itemsize:
        raise FormatError(f"{path}: {end - start} bytes are no whole number of {dtype} ids; pass another dtype, or get it again")
    ends = _ends(path, start, end, stored, eos, (status.st_size, status.st_mtime_ns))
    num_tokens = np.diff(ends, prepend=0)
    shard = TokenShard(str(path), stored, start + (ends - num_tokens) * stored.itemsize, num_tokens)
    return ShardFacts(len(shard), int(ends[-1]) if len(ends) else 0, dtype, crc32c(ends), lambda: shard)


def _array(path: Path, head: bytes, nbytes: int) -> tuple[int, int, str]:
    """Return where the values of a numpy file begin and end, and their dtype. Raises FormatError for what no list of ids is."""
    try:
        header = read_npy_header(head)
    except DecodeError as exc:
        raise FormatError(f"{path}: {exc}; save it again") from exc
    is_little = header.dtype == header.dtype.newbyteorder("<")
    what = f"{header.dtype.str} {header.shape}"
    if len(header.shape) != 1 or header.dtype.name not in READ_DTYPES or not is_little:
        raise FormatError(f"{path}: holds {what}, and not one row of little-endian {', '.join(READ_DTYPES)}; save it as one")
    if header.start + header.nbytes != nbytes:
        raise FormatError(f"{path}: has {nbytes - header.start} bytes after its header, which says {what}; save it again")
    return header.start, header.start + header.nbytes, header.dtype.name


def _ends(
    path: Path, start: int, end: int, dtype: np.dtype[np.generic], eos: int | None, stamp: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the ends of documents in tokens: after each `eos`, and at the end of the file."""
    num_tokens = (end - start) // dtype.itemsize
    if eos is None:
        return np.array([num_tokens] if num_tokens else [], np.int64)
    name = hashlib.sha256(
        repr((os.path.realpath(path), start, dtype.str, eos, stamp)).encode(errors="surrogateescape")
    ).hexdigest()
    kept = index_directory(INDEXES, name[:32]) / "ends"
    with contextlib.suppress(FileNotFoundError):
        found = read_bytes(kept, at_most=1 << 40)
        if _are_ends(found, num_tokens):
            return np.frombuffer(found, np.int64)
    with reported_wait(f"the documents of {path}", "it is read once, to find their ends"):
        parts = [
            _ends_in(path, place, end, dtype, eos) + (place - start) // dtype.itemsize
            for place in range(start, end, _READ_NBYTES)
        ]
    ends = np.concatenate([np.zeros(0, np.int64), *parts])
    if num_tokens and (not len(ends) or ends[-1] != num_tokens):
        ends = np.append(ends, num_tokens)
    with atomic.atomic_writer(kept, mode=0o600) as file:
        file.write(ends.tobytes())
    return ends


def _are_ends(data: bytes, num_tokens: int) -> bool:
    """Return True if kept bytes are the ends of documents of a file of so many tokens."""
    if len(data) % 8:
        return False
    ends = np.frombuffer(data, np.int64, len(data) // 8)
    return (int(ends[-1]) if len(ends) else 0) == num_tokens and not (np.diff(ends, prepend=0) < 1).any()


def _ends_in(path: Path, place: int, end: int, dtype: np.dtype[np.generic], eos: int) -> NDArray[np.int64]:
    with open_file(path) as file:
        data = os.pread(file.fileno(), min(_READ_NBYTES, end - place), place)
    return np.flatnonzero(np.frombuffer(data, dtype) == eos) + 1
