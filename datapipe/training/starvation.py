"""The share of the training time spent waiting for data."""

from __future__ import annotations

import time
from typing import Protocol

from datapipe.diagnostics.bracket import ThreadBracket as DiagnosticBracket
from datapipe.diagnostics.cuda_clock import open_clock


class Bracket(Protocol):
    """A measurement around each `next()` of one pass over a loader. Called from one thread."""

    def begin(self) -> None:
        """Note that the loop is about to request a batch."""

    def end(self) -> None:
        """Note that the loop has the batch."""

    def stop(self) -> None:
        """Note that the pass has ended or was abandoned."""

    @property
    def starvation(self) -> float | None:
        """Time waiting for data / time of the steps, so far in this pass; None if nothing was measured yet."""


class HostBracket:
    """A measurement by the host's clock: the time in `next()`. Overstates on a GPU, where earlier work still runs meanwhile."""

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


class DeviceBracket:
    """A measurement by the GPU's clock: how long the GPU was idle while the loop was in `next()`.

    Only steps that the device has passed count, so the figure lags a few steps. Until there is one, and if the device cannot
    tell, the figure is the host's.
    """

    def __init__(self) -> None:
        self._bracket = DiagnosticBracket(open_clock())
        self._pass = self._bracket.open_pass()

    def begin(self) -> None:
        self._pass.begin()

    def end(self) -> None:
        self._pass.end()

    def stop(self) -> None:
        self._pass.stop()
        self._bracket.finish()

    @property
    def starvation(self) -> float | None:
        totals = self._bracket.timeline.training
        if totals.num_on_device:
            waited_s, worked_s = totals.gap_s + totals.copy_s, totals.work_s
        else:
            waited_s, worked_s = totals.first_wait_s + totals.host_wait_s, totals.host_work_s
        return waited_s / max(waited_s + worked_s, 1e-9) if totals.num_steps else None


def open_bracket() -> Bracket:
    """Return the bracket for this machine."""
    return DeviceBracket() if open_clock().device is not None else HostBracket()
