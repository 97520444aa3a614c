"""Read values of samples from local files: bytes, checked against their checksums, or rows of row groups."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import crc32c

from datapipe.codecs.probe import check_sample_size
from datapipe.codecs.stored import PLAIN, decode_stored, value_nbytes, why_absent
from datapipe.containers.formats import take_rows
from datapipe.containers.forms import FORMS
from datapipe.core.regular_files import open_descriptor
from datapipe.errors import (
    DecodeError,
    FormatError,
    IntegrityError,
    MissingDataError,
    MissingSampleError,
    StorageError,
)
from datapipe.fetch.row_groups import RowGroups
from datapipe.index.entries import WHOLE_FILE, Codec, Extents, RowGroup, is_bytes

# Errors of a file that is missing where the listing found it; they do not mean that the storage fails.
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG))
_MAX_GAP = 1 << 16  # bytes read in vain rather than skipped
_TAKING = frozenset(form for form, facts in FORMS.items() if facts.takes_rows)
_RESTORE = "restore it, or pass on_error='skip' or 'replace'"


class LocalFiles:
    """Reads extents with `pread`; shards stay open, at most `max_open` of them. Thread-safe.

    `max_open` defaults to a quarter of the process's limit of open files, at most 512. Values that are addressed by rows come
    from `row_groups`.
    """

    def __init__(self, *, max_open: int | None = None, row_groups: RowGroups | None = None) -> None:
        self._max_open = max_open or min(512, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._open: dict[str, _OpenFile] = {}
        self._lock = threading.Lock()
        self._row_groups = RowGroups() if row_groups is None else row_groups

    def read(self, extents: Extents, row: int) -> bytes:
        """Return the value of one extent, made of its bytes as its codec says.

        Raises MissingDataError, StorageError, or IntegrityError if the file is shorter than its index
        says, the checksum differs, or a row group cannot be read; DecodeError if a row has no value or a sample is
        larger than MAX_SAMPLE_NBYTES; MissingSampleError if the file of a sample is gone, or no regular file any more.
        """
        (place,) = _places(extents, range(row, row + 1))
        return self._read(extents, row, *place)

    def read_each(self, extents: Extents, rows: Sequence[int]) -> list[bytes | DecodeError | IntegrityError]:
        """Return the bytes of several extents as `read` would, in fewer steps; an error takes the place of the bytes.

        Raises MissingDataError and StorageError.
        """
        found: list[bytes | DecodeError | IntegrityError] = []
        taken = {} if extents.codecs is None else _taken(extents, extents.codecs, rows)
        for row, place in zip(rows, _places(extents, rows), strict=True):
            try:
                found.append(taken[row] if row in taken else self._read(extents, row, *place))
            except (DecodeError, IntegrityError) as exc:
                found.append(exc)
        return found

    def reader(self, path: str, start: int) -> Callable[[int, int], bytes]:
        """Return what reads a file: (offset from `start`, bytes) -> bytes, fewer at its end.

        It raises MissingDataError or StorageError.
        """

        def read(offset: int, nbytes: int) -> bytes:
            try:
                file = self._file(path)
                return os.pread(file.descriptor, min(nbytes, max(0, file.nbytes - start - offset)), start + offset)
            except OSError as exc:
                raise _translated(exc, path) from exc

        return read

    def _read(self, extents: Extents, row: int, path: str, offset: int, nbytes: int, crc: int, has_crc: int) -> bytes:
        """Do what `read` does, given the numbers of the row."""
        codec = PLAIN if extents.codecs is None else extents.codecs[row]
        if isinstance(codec, RowGroup):
            return self._row_groups.value(codec, offset)
        if codec and (reason := why_absent(codec)) is not None:
            raise DecodeError(reason)
        if extents.one_file_each or nbytes == WHOLE_FILE:
            data = _read_whole(path)
            return decode_stored(data, codec) if codec else data
        check_sample_size(max(nbytes, value_nbytes(nbytes, codec)) if codec else nbytes)
        try:
            file = self._file(path)  # referred to here, so that it stays open for this read if another thread drops it
            fits = offset + nbytes <= file.nbytes  # checked first, as `pread` allocates memory for all it is to read
            data = os.pread(file.descriptor, nbytes, offset) if fits else b""
        except OSError as exc:
            raise _translated(exc, path) from exc
        if not fits or len(data) != nbytes:
            raise IntegrityError(
                f"{path}: ends within bytes {offset}..{offset + nbytes}: truncated, or changed since it was indexed; "
                "`datapipe verify` lists all damage"
            )
        if has_crc and (found := crc32c.crc32c(data)) != crc:
            raise IntegrityError(
                f"{path}: bytes {offset}..{offset + nbytes} have crc32c {found:08x}, written as {crc:08x}: "
                "damaged; `datapipe verify` lists all damage"
            )
        return decode_stored(data, codec) if codec else data

    def will_need(self, extents: Extents) -> None:
        """Ask the kernel to read these extents ahead, except row groups; returns at once. Errors are left to `read`."""
        if extents.one_file_each:
            return
        for span in plan_reads(extents):
            with contextlib.suppress(OSError, FormatError):
                file = self._file(span.path)
                os.posix_fadvise(file.descriptor, span.offset, span.nbytes, os.POSIX_FADV_WILLNEED)

    def reach(self, epoch: int, step: int) -> None:
        """Nothing: the kernel forgets by itself."""

    def take_network_ns(self) -> int:
        """Return 0: a file system's use of a network is not visible."""
        return 0

    def close(self) -> None:
        """Close every file; a later read opens its file again."""
        with self._lock:
            self._open.clear()

    def _file(self, path: str) -> _OpenFile:
        file = self._open.get(path)
        if file is None:
            file = _OpenFile(path)
            with self._lock:
                while len(self._open) >= self._max_open:
                    self._open.pop(next(iter(self._open)))
                file = self._open.setdefault(path, file)
        return file


class _OpenFile:
    """A descriptor that is closed when the last thread drops it."""

    __slots__ = ("descriptor", "nbytes")

    def __init__(self, path: str) -> None:
        self.descriptor = -1
        self.descriptor, status = open_descriptor(path)
        self.nbytes = status.st_size

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone at the interpreter's end
        if self.descriptor >= 0:
            close(self.descriptor)


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """A run of bytes of one file."""

    path: str
    offset: int
    nbytes: int


def plan_reads(extents: Extents, *, max_gap: int = _MAX_GAP) -> list[ByteSpan]:
    """Return spans that cover all extents of bytes, joining those within `max_gap` bytes of each other."""
    spans: list[ByteSpan] = []
    path, start, end = "", 0, -1
    wanted: Iterable[tuple[str, int, int]] = zip(extents.paths, extents.offset.tolist(), extents.nbytes.tolist(), strict=True)
    if extents.codecs is not None:
        wanted = (span for span, codec in zip(wanted, extents.codecs, strict=True) if is_bytes(codec))
    for here, offset, nbytes in sorted(wanted):
        if here == path and offset <= end + max_gap:
            end = max(end, offset + nbytes)
            continue
        if end >= 0:
            spans.append(ByteSpan(path, start, end - start))
        path, start, end = here, offset, offset + nbytes
    if end >= 0:
        spans.append(ByteSpan(path, start, end - start))
    return spans


def _taken(extents: Extents, codecs: Sequence[Codec], rows: Sequence[int]) -> dict[int, bytes | DecodeError | IntegrityError]:
    """Return the values, or errors, of those rows that a form takes by their numbers, all of a shard at once."""
    wanted: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        codec = codecs[row]
        if isinstance(codec, RowGroup) and codec.container in _TAKING:
            wanted.setdefault((codec.container, codec.path, codec.column), []).append(row)
    found: dict[int, bytes | DecodeError | IntegrityError] = {}
    for (container, path, column), some in wanted.items():
        try:
            found |= zip(some, take_rows(container, path, column, extents.offset[some].tolist()), strict=True)
        except IntegrityError as exc:
            found |= dict.fromkeys(some, exc)
    return found


def _places(extents: Extents, rows: Sequence[int]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield path, offset, size, checksum and has_crc of each row; converting whole arrays costs less than converting by row."""
    numbers = extents.offset, extents.nbytes, extents.crc32c, extents.has_crc
    if isinstance(rows, range):
        some = slice(rows.start, rows.stop, rows.step)
        return zip(extents.paths[some], *(column[some].tolist() for column in numbers), strict=True)
    return zip([extents.paths[row] for row in rows], *(column[rows].tolist() for column in numbers), strict=True)


def open_sample(path: str) -> tuple[int, os.stat_result]:
    """Open the file of a sample that has it for itself; return its descriptor, which the caller closes, and its status.

    Raises MissingSampleError if it is gone, or no regular file any more, and StorageError.
    """
    try:
        return open_descriptor(path)
    except FormatError as exc:  # the file is a sample of its own, so only that one is bad
        raise MissingSampleError(f"{exc}; {_RESTORE}") from exc
    except OSError as exc:
        if exc.errno in _GONE:
            raise MissingSampleError(f"{path}: is missing, or no regular file any more ({exc.strerror}); {_RESTORE}") from exc
        raise _translated(exc, path) from exc
    except ValueError as exc:
        raise MissingSampleError(f"{path}: is not a valid file name ({exc}); {_RESTORE}") from exc


def _read_whole(path: str) -> bytes:
    descriptor, status = open_sample(path)
    try:
        size = status.st_size
        check_sample_size(size)
        data = os.read(descriptor, size + 1)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
        return data
    except DecodeError:
        raise
    except OSError as exc:
        raise _translated(exc, path) from exc
    finally:
        os.close(descriptor)


def _translated(exc: OSError, path: str) -> MissingDataError | StorageError:
    if isinstance(exc, FileNotFoundError):
        return MissingDataError(f"{path}: is missing; `datapipe verify {Path(path).parent}` lists everything that is")
    return StorageError(exc.errno, f"{path}: cannot be read ({exc.strerror})")
