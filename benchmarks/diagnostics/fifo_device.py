"""A device in real time: a thread that works off a queue by sleeping, and logs when it did."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from benchmarks.diagnostics.device_log import Busy, DeviceLog
from datapipe.diagnostics.measure.clock import Mark

_QUEUE = 6  # steps' worth of work


class _Stamp:
    """A mark: when the thread came past."""

    __slots__ = ("passed", "time_s")

    def __init__(self) -> None:
        self.time_s = 0.0
        self.passed = threading.Event()


class FifoDevice:
    """One queue, one thread. `Clock` of `datapipe.diagnostics`, too. Close it after use."""

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
