"""A device and a host in virtual time: what takes minutes takes milliseconds, and the truth is exact."""

from __future__ import annotations

from collections import deque

from benchmarks.diagnostics.device_log import Busy, DeviceLog
from datapipe.diagnostics.measure.clock import Mark

_QUEUE = 6  # steps' worth of work that the device's queue holds; then launching waits


class VirtualWorld:
    """One host thread and one device with one queue. `Clock` of `datapipe.diagnostics`, too."""

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
