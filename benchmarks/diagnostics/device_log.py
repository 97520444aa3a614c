"""What a stand-in for a device logs of its own work: the truth that the bracket is held against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Busy: TypeAlias = Literal["work", "copy", "collective"]


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
