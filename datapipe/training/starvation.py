"""How much of the training time went by waiting for data."""

from __future__ import annotations

import time
from typing import Protocol


class Bracket(Protocol):
    """Goes around each `next()` of one pass over a loader. Called from one thread."""

    def begin(self) -> None:
        """The loop is about to ask for a batch."""

    def end(self) -> None:
        """It has it."""

    def stop(self) -> None:
        """The pass is over, or left."""

    @property
    def starvation(self) -> float | None:
        """Time waiting for data / time of the steps, so far in this pass; None where nothing was measured yet."""


class HostBracket:
    """The host's clock: what the loop stood in `next()`. On a GPU that overstates, as work launched before still runs."""

    def __init__(self) -> None:
        self._started_s: float | None = None
        self._stopped_s: float | None = None
        self._asked_s = self._waited_s = 0.0

    def begin(self) -> None:
        self._asked_s = time.perf_counter()
        if self._started_s is None:
            self._started_s = self._asked_s

    def end(self) -> None:
        self._waited_s += time.perf_counter() - self._asked_s

    def stop(self) -> None:
        self._stopped_s = time.perf_counter()

    @property
    def starvation(self) -> float | None:
        until_s = time.perf_counter() if self._stopped_s is None else self._stopped_s
        return None if self._started_s is None else self._waited_s / max(until_s - self._started_s, 1e-9)
