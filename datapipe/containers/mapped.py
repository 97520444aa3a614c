"""Open files and objects as sources of bytes that parsers look at here and there."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast, overload

from datapipe.core import regular_files
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes, RemoteFile

PLAIN_NBYTES = 1 << 26  # that any few bytes may become


class ByteSource(Protocol):
    """Bytes of known number, looked at here and there; `bytes` and `mmap.mmap` are such."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, place: int, /) -> int: ...
    @overload
    def __getitem__(self, place: slice, /) -> bytes: ...


def is_bomb(nbytes: int, stored_nbytes: int, *, plain_nbytes: int = PLAIN_NBYTES) -> bool:
    """Return True if compressed bytes claim to become more than any codec can make of them, and more than 64 MiB.

    `plain_nbytes`: more than those, where that is more.
    """
    return nbytes > max(PLAIN_NBYTES, plain_nbytes, 1100 * stored_nbytes)  # deflate's ratio


@contextlib.contextmanager
def byte_source(path: str | Path, form: str) -> Iterator[ByteSource]:
    """The bytes of `path`, a file of that form, or of the object of a URL. Raises as `mapped` does."""
    if not is_url(str(path)):
        with mapped(Path(path), form) as data:
            yield data
        return
    remote = RemoteBytes(str(path))
    if not len(remote):
        raise FormatError(f"{path}: empty, not {form}; get the file again or remove it")
    yield remote


@contextlib.contextmanager
def mapped(path: Path, form: str) -> Iterator[mmap.mmap]:
    """Yield the bytes of `path`, a file of that form. Nothing is read ahead, as headers are small compared with images.

    Raises MissingDataError, StorageError, or FormatError for an empty or irregular file; also for an OSError in the block.
    """
    try:
        with regular_files.open_file(path) as plain:
            if not os.fstat(plain.fileno()).st_size:
                raise FormatError(f"{path}: empty file, not {form}; get the file again or remove it")
            with mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as data:
                data.madvise(mmap.MADV_RANDOM)
                yield data
    except FileNotFoundError as exc:
        raise MissingDataError(f"{path}: no such shard") from exc
    except OSError as exc:
        raise StorageError(exc.errno, f"{path}: cannot be read ({exc.strerror})") from exc


@contextlib.contextmanager
def opened_for_library(path: str | Path) -> Iterator[str | BinaryIO]:
    """Give what a library opens a file by: a name that means this file and no other, or a file over the object of a URL.

    Raises what `regular_files.opened_by_name` raises; reading an object raises MissingDataError and StorageError.
    """
    if is_url(str(path)):
        yield cast(BinaryIO, RemoteFile(RemoteBytes(str(path))))
        return
    with regular_files.opened_by_name(path) as name:
        yield name
