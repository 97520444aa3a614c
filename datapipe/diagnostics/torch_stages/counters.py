"""The kernel's counters of the calling thread, from /proc; each None where it cannot be read."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from datapipe.diagnostics.torch_stages.profile import Counters

_NS_PER_TICK = 10_000_000  # of /proc/PID/stat: hundredths of a second on every Linux
_BLOCKED_FIELD = 41  # delayacct_blkio_ticks, counted from 0


class ThreadCounters:
    """Of the thread that makes it, in the process that makes it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._io = _open("io")
        self._schedstat = _open("schedstat")
        self._stat = _open("stat") if _delays_are_counted() else None

    def __del__(self) -> None:
        for file in (self._io, self._schedstat, self._stat):
            if file is not None:
                with suppress(OSError):
                    os.close(file)

    def before(self, *, with_reading: bool = True) -> Counters:
        """The sums as they are once this has returned. Costs a few microseconds, the most of it for what was read."""
        queued_ns, blocked_ns = self._queued_ns(), self._blocked_ns()
        reading = self._io_nbytes(is_counted=True) if with_reading else (None, None)
        return Counters(*reading, blocked_ns, queued_ns)

    def after(self, *, with_reading: bool = True) -> Counters:
        """The sums as they were before this was called."""
        read_nbytes, storage_nbytes = self._io_nbytes(is_counted=False) if with_reading else (None, None)
        return Counters(read_nbytes, storage_nbytes, self._blocked_ns(), self._queued_ns())

    def _io_nbytes(self, *, is_counted: bool) -> tuple[int | None, int | None]:
        """Read by calls, and from storage. `is_counted`: with what is read here."""
        with suppress(OSError, ValueError):
            if self._io is not None:
                text = os.pread(self._io, 512, 0)
                words = text.split()
                read, storage = words.index(b"rchar:") + 1, words.index(b"read_bytes:") + 1
                return int(words[read]) + (len(text) if is_counted else 0), int(words[storage])
        return None, None

    def _queued_ns(self) -> int | None:
        with suppress(OSError, ValueError, IndexError):
            if self._schedstat is not None:
                return int(os.pread(self._schedstat, 128, 0).split()[1])
        return None

    def _blocked_ns(self) -> int | None:
        with suppress(OSError, ValueError, IndexError):
            if self._stat is not None:
                after_name = os.pread(self._stat, 1024, 0).rpartition(b")")[2].split()  # the name may hold blanks
                return int(after_name[_BLOCKED_FIELD - 2]) * _NS_PER_TICK
        return None


def thread_counters() -> ThreadCounters:
    """Those of the calling thread, kept open between batches."""
    kept = getattr(_kept, "counters", None)
    if kept is None or kept.pid != os.getpid():  # a forked child's thread is not its parent's
        kept = _kept.counters = ThreadCounters()
    return kept


def between(start: Counters, end: Counters) -> Counters:
    """What was counted in between."""
    return Counters(
        _difference(start.read_nbytes, end.read_nbytes),
        _difference(start.storage_nbytes, end.storage_nbytes),
        _difference(start.blocked_ns, end.blocked_ns),
        _difference(start.queued_ns, end.queued_ns),
    )


_kept = threading.local()


def _difference(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else max(0, end - start)


def _open(name: str) -> int | None:
    try:
        return os.open(f"/proc/thread-self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _delays_are_counted() -> bool:
    try:
        with open("/proc/sys/kernel/task_delayacct", "rb") as file:
            return file.read().strip() != b"0"
    except OSError:
        return False  # 0 would then be no measurement
