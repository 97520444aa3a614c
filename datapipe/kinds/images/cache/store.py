"""Store values by sample id in a file that many threads and processes fill and read at once.

The data file only grows. Space in it is allocated under a lock, which is held for microseconds; the value is written
there without the lock, and its entry is published last. A reader checks the value against the checksum in its entry, so the
remains of a killed process, a damaged disk or an unfinished write are a miss, never a wrong value. Nothing is mapped
into memory: a full file system is an error of a write, not a signal.

Nothing is ever evicted. In a random order over the whole dataset any fixed part of it gives as many hits per epoch as
any other, and an evicted value would be missed before it comes again; so a full store stays as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import crc32c

from datapipe.core.atomic import write_at
from datapipe.core.printable import get_logger
from datapipe.errors import StorageError
from datapipe.kinds.images.cache.entries import (
    ENTRY_NBYTES,
    HEAD_NBYTES,
    Entry,
    Head,
    pack_entry,
    pack_head,
    position_of,
    unpack_entry,
    unpack_head,
)

logger = get_logger(__name__)

Size = tuple[int, int]

_MAX_END = (1 << 63) - 1  # the largest file offset


class StoreFiles:
    """Descriptors of a store's index and data, closed when nothing refers to them any more."""

    def __init__(self, index: int, data: int, *, where: str, in_memory: bool) -> None:
        self.index = index
        self.data = data
        self.where = where  # its name in messages
        self.in_memory = in_memory

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the interpreter's end `os` may be gone
        close(self.index)
        close(self.data)


class Kept(NamedTuple):
    """A value that was found."""

    data: bytes
    size: Size  # (height, width) of the source


class Gap(NamedTuple):
    """A value that is missing or must not be used."""

    id: int
    stamp: int
    seen: bytes  # the entry as it was found


class Store:
    """A map from sample ids to values. Thread-safe, also in a forked child. Never raises if it cannot keep a value.

    `capacity`: bytes of values and their entries, over all processes. A value has a `stamp`, 64 bits that identify its
    source: under another stamp it is not found.
    """

    def __init__(self, files: StoreFiles, *, capacity: int) -> None:
        self.files = files
        self.capacity = capacity
        self.is_open = True  # whether it takes values; once False, it stays so in this process
        self._here = _Here(files)
        with self._alone() as here:
            if self._read_head() is None:
                os.ftruncate(here.descriptor, 0)
                os.ftruncate(files.data, 0)
                write_at(files.index, pack_head(Head(0, 0)), 0)

    def find(self, id: int, stamp: int) -> Kept | Gap:
        """Return the value of a sample, or what `keep` needs in order to keep one."""
        seen = self._read_entry(id)
        entry = self._believed(id, seen)
        if entry is not None and entry.stamp == stamp:
            with contextlib.suppress(OSError):
                data = os.pread(self.files.data, entry.nbytes, entry.offset)
                if len(data) == entry.nbytes and crc32c.crc32c(data) == entry.crc32c:
                    return Kept(data, (entry.height, entry.width))
        return Gap(id, stamp, seen)

    def admits(self, nbytes: int) -> bool:
        """Return True if a value of that size would be kept at present. False for good once one was too large."""
        if self.is_open:
            head = self._read_head()
            self.is_open = head is not None and self._fits(head, nbytes)
        return self.is_open

    def keep(self, gap: Gap, data: bytes, size: Size) -> None:
        """Keep a value, made from pixels of that (height, width), if there is space and no other thread was faster."""
        if not self.is_open:
            return
        try:
            offset = self._allocate(gap, len(data))
            if offset is not None:
                write_at(self.files.data, data, offset)
                entry = Entry(offset, len(data), gap.stamp, *size, crc32c.crc32c(data))
                write_at(self.files.index, pack_entry(gap.id, entry), position_of(gap.id))
        except OSError as exc:
            if self.is_open:
                self.is_open = False
                logger.warning("cache in %s takes nothing more: %s; what it has is still used", self.files.where, exc)

    def will_need(self, id: int) -> bool:
        """Return True if there is a value, without checking stamp and checksum; announces one on disk to the kernel."""
        entry = self._believed(id, self._read_entry(id))
        if entry is not None and not self.files.in_memory:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.files.data, entry.offset, entry.nbytes, os.POSIX_FADV_WILLNEED)
        return entry is not None

    def count(self, *, hits: int, misses: int) -> None:
        """Add to the counters that `counts` returns."""
        here = self._this_process()
        with here.lock:
            here.hits += hits
            here.misses += misses

    def counts(self) -> tuple[int, int]:
        """Return hits and misses of this process."""
        here = self._this_process()
        with here.lock:
            return here.hits, here.misses

    def held(self) -> tuple[int, int]:
        """Return how many values the store has, of all processes, and their bytes with those of their entries.

        A value that is being written counts; so does one whose process was killed while writing.
        """
        head = self._read_head() or Head(0, 0)
        return head.num_kept, _nbytes(head)

    # -- under the lock -------------------------------------------------------------------------

    def _allocate(self, gap: Gap, nbytes: int) -> int | None:
        """Return where to write; None if the value exists by now, or there is no space."""
        with self._alone():
            head = self._read_head()
            if head is None:
                raise StorageError("its head is damaged; remove it")
            if self._read_entry(gap.id) != gap.seen:
                return None
            if not self._fits(head, nbytes):
                self.is_open = False
                return None
            is_new = unpack_entry(gap.id, gap.seen) is None
            write_at(self.files.index, pack_head(Head(head.end + nbytes, head.num_kept + is_new)), 0)
            return head.end

    @contextlib.contextmanager
    def _alone(self) -> Iterator[_Here]:
        here = self._this_process()
        with here.lock:
            fcntl.flock(here.descriptor, fcntl.LOCK_EX)
            try:
                yield here
            finally:
                fcntl.flock(here.descriptor, fcntl.LOCK_UN)

    def _this_process(self) -> _Here:
        here = self._here
        if here.process != os.getpid():  # forked; two threads may both create one, which exclude each other nevertheless
            here = self._here = _Here(self.files)
        return here

    # -- files ----------------------------------------------------------------------------------

    def _fits(self, head: Head, nbytes: int) -> bool:
        return _nbytes(head) + nbytes + ENTRY_NBYTES <= self.capacity

    def _read_head(self) -> Head | None:
        try:
            return unpack_head(os.pread(self.files.index, HEAD_NBYTES, 0))
        except OSError:
            return None

    def _read_entry(self, id: int) -> bytes:
        """Return the entry's bytes in the file, padded with zeros at its end."""
        try:
            return os.pread(self.files.index, ENTRY_NBYTES, position_of(id)).ljust(ENTRY_NBYTES, b"\0")
        except OSError:
            return bytes(ENTRY_NBYTES)

    def _believed(self, id: int, seen: bytes) -> Entry | None:
        """Return the entry if it is valid and its value lies in the data file: a forged entry may have a correct checksum."""
        entry = unpack_entry(id, seen)
        if entry is None or entry.offset + entry.nbytes > min(os.fstat(self.files.data).st_size, _MAX_END):
            return None
        return entry


class _Here:
    """The state of one process: locks belong to an open file, which a fork would share."""

    def __init__(self, files: StoreFiles) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.hits = self.misses = 0
        self.descriptor = -1
        self.descriptor = os.open(f"/proc/self/fd/{files.index}", os.O_RDWR | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the interpreter's end `os` may be gone
        if self.descriptor >= 0:
            close(self.descriptor)


def _nbytes(head: Head) -> int:
    return head.end + head.num_kept * ENTRY_NBYTES
