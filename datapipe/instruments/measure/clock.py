"""Clocks: the host's, and marks that a device passes.

A mark is put into the device's queue of work and is passed when the device reaches it. The time between two marks around
`next()` is therefore time in which the device could only wait: by then its earlier work is finished. Nothing here waits
for the device except `Clock.wait`.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, TypeAlias

Mark: TypeAlias = Any  # the clock's own kind: torch.cuda.Event

_MS = 1e-3  # cudaEventElapsedTime counts milliseconds


class Clock(Protocol):
    """The host's time and, if there is a device, the device's. For one thread."""

    @property
    def device(self) -> str | None:
        """The device whose time the marks tell; None if there is no device, and `mark` returns None."""

    def now_ns(self) -> int:
        """Return the host's time; only differences are meaningful."""

    def cpu_ns(self) -> int | None:
        """Return the CPU time of this process, of all its threads; only differences are meaningful. None: not known."""

    def follow(self, device: int) -> None:
        """Make further marks on the GPU of that index, which does the training. Until then: on the thread's current GPU."""

    def mark(self) -> Mark | None:
        """Return a mark after all work that the calling thread has queued on the device; None if none can be made now."""

    def is_past(self, mark: Mark) -> bool:
        """Return True if the device has passed the mark; never waits."""

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Return the seconds on the device between two marks that it has passed; NaN if unknown."""

    def wait(self, mark: Mark) -> None:
        """Return when the device has passed the mark. Only for the end of a run."""

    def release(self, mark: Mark) -> None:
        """Return a mark that is not needed any more, for reuse."""


class HostClock:
    """A `Clock` without a device: it measures the host's waiting, but not a device's."""

    device = None

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def cpu_ns(self) -> int | None:
        return time.process_time_ns()

    def follow(self, device: int) -> None:
        """Do nothing: there is no device."""

    def mark(self) -> Mark | None:
        return None

    def is_past(self, mark: Mark) -> bool:
        return True

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        return float("nan")

    def wait(self, mark: Mark) -> None:
        """Return at once: there is no device."""

    def release(self, mark: Mark) -> None:
        """Do nothing: there are no marks."""


class CudaClock:
    """A `Clock` by CUDA events on the calling thread's current stream of a GPU, see `follow`; torch must be imported.

    Events are taken from a pool, queried but never waited for. Creates no CUDA context: until the script has created one there
    are no marks. Also none while a graph is captured, since the capture would include the event.
    """

    def __init__(self) -> None:
        self._cuda: Any = sys.modules["torch"].cuda
        self._free: list[Mark] = []
        self._index: int | None = None  # of the GPU; None: the current one

    @property
    def device(self) -> str | None:
        return "cuda"

    def follow(self, device: int) -> None:
        self._index = device

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def cpu_ns(self) -> int | None:
        return time.process_time_ns()

    def mark(self) -> Mark | None:
        if not self._cuda.is_initialized():
            return None
        if self._index in (None, self._cuda.current_device()):
            return self._mark()
        with self._cuda.device(self._index):  # a script may train on a GPU without making it the current one
            return self._mark()

    def _mark(self) -> Mark | None:
        """Return a mark on the current device; None while its stream is captured."""
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream())
        return event

    def is_past(self, mark: Mark) -> bool:
        return bool(mark.query())

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        try:
            return float(start.elapsed_time(end)) * _MS
        except (RuntimeError, ValueError):  # marks on two devices
            return float("nan")

    def wait(self, mark: Mark) -> None:
        mark.synchronize()

    def release(self, mark: Mark) -> None:
        if self._cuda.device_count() == 1:  # an event belongs to the device of its first mark; the next may be on another
            self._free.append(mark)


def open_clock() -> Clock:
    """Return the clock for this machine: CUDA's if torch is imported and finds a GPU, else the host's."""
    torch: Any = sys.modules.get("torch")
    return CudaClock() if torch is not None and torch.cuda.is_available() else HostClock()
