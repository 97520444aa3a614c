"""A store of values by sample id that many threads and processes fill and read at once.

The data file only grows. Room in it is given away under a lock, which is held for microseconds; the value is written
there without one, and its entry is published last. A reader checks the value against the checksum in its entry, so
whatever a killed process, a damaged disk or an unfinished write has left is a miss, never a wrong value. Nothing is mapped
into memory: a full file system is an error of a write, not a signal.

Nothing is ever thrown out. In a random order over the whole dataset any fixed part of it serves as many hits per epoch as
any other, and what is thrown out is found to be missing before it comes again; so when the store is full it stays as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import crc32c

from datapipe.core.errors import StorageError
from datapipe.core.printable import get_logger
from datapipe.fetch.cache.entries import (
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
from datapipe.fetch.cache.files import StoreFiles

logger = get_logger(__name__)

Size = tuple[int, int]

_MAX_END = (1 << 63) - 1  # what a file offset can be


class Kept(NamedTuple):
    """A value that was found."""

    data: bytes
    size: Size  # (height, width) of what it was made from


class Gap(NamedTuple):
    """A value that is not there, or not to be used."""

    id: int
    stamp: int
    seen: bytes  # the entry as it was found


class Store:
    """Values by sample id. Thread-safe; in a forked child too. Never raises for what it cannot keep.

    `capacity`: bytes of values and their entries, over all processes. A value has a `stamp`, 64 bits that say what it
    was made from: under another stamp it is not found.
    """

    def __init__(self, files: StoreFiles, *, capacity: int) -> None:
        self.files = files
        self.capacity = capacity
        self.is_open = True  # it takes values; once it does not, it never does again in this process
        self._here = _Here(files)
        with self._alone() as here:
            if self._read_head() is None:
                os.ftruncate(here.descriptor, 0)
                os.ftruncate(files.data, 0)
                self._write(files.index, pack_head(Head(0, 0)), 0)

    def find(self, id: int, stamp: int) -> Kept | Gap:
        """The value of a sample, or what `keep` wants to know to keep one."""
        seen = self._read_entry(id)
        entry = self._believed(id, seen)
        if entry is not None and entry.stamp == stamp:
            with contextlib.suppress(OSError):
                data = os.pread(self.files.data, entry.nbytes, entry.offset)
                if len(data) == entry.nbytes and crc32c.crc32c(data) == entry.crc32c:
                    return Kept(data, (entry.height, entry.width))
        return Gap(id, stamp, seen)

    def admits(self, nbytes: int) -> bool:
        """Whether a value of that size would be kept, as things are. False for good once one was too large."""
        if self.is_open:
            head = self._read_head()
            self.is_open = head is not None and self._fits(head, nbytes)
        return self.is_open

    def keep(self, gap: Gap, data: bytes, size: Size) -> None:
        """Keep a value, made from pixels of that (height, width), where there is room and nobody else has been faster."""
        if not self.is_open:
            return
        try:
            offset = self._allocate(gap, len(data))
            if offset is not None:
                self._write(self.files.data, data, offset)
                entry = Entry(offset, len(data), gap.stamp, *size, crc32c.crc32c(data))
                self._write(self.files.index, pack_entry(gap.id, entry), position_of(gap.id))
        except OSError as exc:
            if self.is_open:
                self.is_open = False
                logger.warning("cache in %s takes nothing more: %s; what it has is still used", self.files.where, exc)

    def will_need(self, id: int) -> bool:
        """Whether there is a value, stamp and checksum unseen; one on disk is announced to the kernel."""
        entry = self._believed(id, self._read_entry(id))
        if entry is not None and not self.files.in_memory:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.files.data, entry.offset, entry.nbytes, os.POSIX_FADV_WILLNEED)
        return entry is not None

    def count(self, *, hits: int, misses: int) -> None:
        """Add to what `counts` gives."""
        here = self._this_process()
        with here.lock:
            here.hits += hits
            here.misses += misses

    def counts(self) -> tuple[int, int]:
        """Hits and misses of this process."""
        here = self._this_process()
        with here.lock:
            return here.hits, here.misses

    def held(self) -> tuple[int, int]:
        """How many values the store has, of all processes, and their bytes with those of their entries.

        A value that is being written counts; so does one whose process was killed meanwhile.
        """
        head = self._read_head() or Head(0, 0)
        return head.num_kept, _nbytes(head)

    # -- under the lock -------------------------------------------------------------------------

    def _allocate(self, gap: Gap, nbytes: int) -> int | None:
        """Where to write; None where the value is there by now, or there is no room."""
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
            self._write(self.files.index, pack_head(Head(head.end + nbytes, head.num_kept + is_new)), 0)
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
        if here.process != os.getpid():  # forked; two threads may both make one, and exclude each other nevertheless
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
        """As it is in the file; zeros where that ends before."""
        try:
            return os.pread(self.files.index, ENTRY_NBYTES, position_of(id)).ljust(ENTRY_NBYTES, b"\0")
        except OSError:
            return bytes(ENTRY_NBYTES)

    def _believed(self, id: int, seen: bytes) -> Entry | None:
        """The entry, where it is whole and its value lies in the data file: a checksum is easily made for one that lies."""
        entry = unpack_entry(id, seen)
        if entry is None or entry.offset + entry.nbytes > min(os.fstat(self.files.data).st_size, _MAX_END):
            return None
        return entry

    @staticmethod
    def _write(descriptor: int, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written


class _Here:
    """What a process has of its own: locks are those of an open file, which a fork would share."""

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
