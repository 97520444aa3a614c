"""What time is taken by: the host's clock, and marks that a device passes.

A mark is put into the queue of work of the device, and is passed when the device gets there. So what lies
between two marks around `next()` is time in which the device had nothing to do but wait: work that it still
had is behind it by then. Nothing here waits for the device but `Clock.wait`.
"""

from __future__ import annotations

import time
from typing import Any, Protocol, TypeAlias

Mark: TypeAlias = Any  # the clock's own kind: torch.cuda.Event


class Clock(Protocol):
    """The host's time and, where there is a device, the device's. For one thread."""

    @property
    def device(self) -> str | None:
        """Whose time marks tell; None where there is no device, and `mark` gives None."""

    def now_ns(self) -> int:
        """The host's clock; only differences mean something."""

    def mark(self) -> Mark | None:
        """A mark behind all work that the calling thread gave to the device so far; None if it cannot be had now."""

    def is_past(self, mark: Mark) -> bool:
        """Whether the device has passed it; never waits."""

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Seconds on the device between two marks that it has passed; NaN where that cannot be told."""

    def wait(self, mark: Mark) -> None:
        """Return once the device has passed it. For the end of a run only."""

    def release(self, mark: Mark) -> None:
        """The mark is not needed any more and may be used again."""


class HostClock:
    """`Clock` without a device: what the host waits is known, what a device would wait is not."""

    device = None

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def mark(self) -> Mark | None:
        return None

    def is_past(self, mark: Mark) -> bool:
        return True

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        return float("nan")

    def wait(self, mark: Mark) -> None:
        """Nothing to wait for."""

    def release(self, mark: Mark) -> None:
        """Nothing to release."""
