"""Stand-ins for a device, in virtual and in real time. What each logs of its own work is the truth for the bracket."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from datapipe.instruments.measure.clock import Mark

Busy: TypeAlias = Literal["work", "copy", "collective"]

_QUEUE = 6  # steps' worth of work that the device's queue holds; then launching waits


@dataclass(slots=True)
class DeviceLog:
    """Busy spans in order, in seconds of the clock that the host reads too."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    kinds: list[Busy] = field(default_factory=list)

    def add(self, start: float, end: float, kind: Busy) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.kinds.append(kind)

    def step_ends(self) -> NDArray[np.float64]:
        """When the work of each step was done."""
        return np.array([end for end, kind in zip(self.ends, self.kinds, strict=True) if kind == "work"])

    def idle_within(self, windows: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, 2) spans of the host, in order -> (n,) seconds of each in which the device did nothing."""
        begin, end = windows[:, 0], windows[:, 1]
        idle: NDArray[np.float64] = (end - begin) - (self._busy_before(end) - self._busy_before(begin))
        return idle

    def copies_within(self, windows: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) seconds of copies that began in each span."""
        starts = np.array(self.starts)
        took = np.where(np.array(self.kinds) == "copy", np.array(self.ends) - starts, 0.0)
        total = np.concatenate([[0.0], np.cumsum(took)])
        first, last = np.searchsorted(starts, windows[:, 0]), np.searchsorted(starts, windows[:, 1])
        sums: NDArray[np.float64] = total[last] - total[first]
        return sums

    def _busy_before(self, moments: NDArray[np.float64]) -> NDArray[np.float64]:
        starts, ends = np.array(self.starts), np.array(self.ends)
        total = np.concatenate([[0.0], np.cumsum(ends - starts)])
        num = np.searchsorted(starts, moments)  # spans begun by then
        last = np.maximum(num - 1, 0)
        over = np.where(num > 0, np.maximum(ends[last] - moments, 0.0), 0.0)  # of the last, what is still to come
        busy: NDArray[np.float64] = total[num] - over
        return busy


class VirtualWorld:
    """One host thread and one device with one queue, in virtual time: what takes minutes takes milliseconds. A `Clock`, too."""

    device = "virtual"

    def __init__(self) -> None:
        self.now = 0.0
        self.free_at = 0.0
        self.log = DeviceLog()
        self._queued: deque[float] = deque()  # when each piece of work will be done

    # -- the host ---------------------------------------------------------------------------------

    def spend(self, seconds: float) -> None:
        """The host does something else."""
        self.now += seconds

    def launch(self, seconds: float, kind: Busy = "work") -> None:
        """Give the device work. Waits if its queue is full, and takes no time else."""
        while self._queued and self._queued[0] <= self.now:
            self._queued.popleft()
        if len(self._queued) >= _QUEUE:
            self.now = max(self.now, self._queued.popleft())
        start = max(self.now, self.free_at)
        self.free_at = start + seconds
        self.log.add(start, self.free_at, kind)
        self._queued.append(self.free_at)

    def synchronize(self) -> float:
        """Wait for the device; how long that took."""
        waited = max(0.0, self.free_at - self.now)
        self.now += waited
        return waited

    # -- Clock ------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return round(self.now * 1e9)

    def follow(self, device: int) -> None:
        """Do nothing: there is one device."""

    def cpu_ns(self) -> int | None:
        return None

    def mark(self) -> Mark | None:
        return max(self.now, self.free_at)

    def is_past(self, mark: Mark) -> bool:
        return bool(mark <= self.now)

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        return float(end - start)

    def wait(self, mark: Mark) -> None:
        self.now = max(self.now, mark)

    def release(self, mark: Mark) -> None:
        """Marks are numbers."""


class _Stamp:
    """A mark: when the thread came past."""

    __slots__ = ("passed", "time_s")

    def __init__(self) -> None:
        self.time_s = 0.0
        self.passed = threading.Event()


class FifoDevice:
    """A thread that works off a queue by sleeping, and logs when it did. A `Clock`, too. Close it after use."""

    device = "fifo"

    def __init__(self) -> None:
        self.log = DeviceLog()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_QUEUE)
        self._num_left = 0  # operations not yet worked off
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fifo-device", daemon=True)
        self._thread.start()

    # -- the host ---------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return time.perf_counter()

    def spend(self, seconds: float) -> None:
        """The host does something else."""
        time.sleep(seconds)

    def launch(self, seconds: float, kind: Busy = "work") -> None:
        """Give the device work. Waits if its queue is full."""
        self._room.acquire()

        def work() -> None:
            start = time.perf_counter()
            time.sleep(seconds)
            self.log.add(start, time.perf_counter(), kind)
            self._room.release()

        self._give(work)

    def synchronize(self) -> float:
        """Wait for the device; how long that took."""
        start = time.perf_counter()
        stamp = self.mark()
        stamp.passed.wait()
        return time.perf_counter() - start

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (operation := self._queue.get()) is not None:
            operation()
            with self._lock:
                self._num_left -= 1

    def _give(self, operation: Callable[[], None]) -> None:
        with self._lock:
            self._num_left += 1
        self._queue.put(operation)

    # -- Clock ------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def follow(self, device: int) -> None:
        """Do nothing: there is one device."""

    def cpu_ns(self) -> int | None:
        return time.process_time_ns()

    def mark(self) -> Mark:
        stamp = _Stamp()

        def come_past() -> None:
            stamp.time_s = time.perf_counter()
            stamp.passed.set()

        with self._lock:
            is_idle = not self._num_left
        if is_idle:  # as a device does: it does not have to wake up first
            come_past()
        else:
            self._give(come_past)
        return stamp

    def is_past(self, mark: Mark) -> bool:
        return bool(mark.passed.is_set())

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        return float(end.time_s - start.time_s)

    def wait(self, mark: Mark) -> None:
        mark.passed.wait()

    def release(self, mark: Mark) -> None:
        """Marks are made again."""
