"""The share of the training time spent waiting for data."""

from __future__ import annotations

from typing import Protocol

from datapipe.diagnostics.measure.bracket import ThreadBracket
from datapipe.diagnostics.measure.cuda_clock import open_clock


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


class ClockBracket:
    """A measurement by the GPU's clock: how long the GPU was idle while the loop was in `next()`. Without a GPU, by the host's.

    The host's clock gives the time in `next()`. Only steps that are over, and that the device has passed, count, so the figure
    lags a few steps. Until there is one that the device has passed, and if the device cannot tell, the figure is the host's.
    """

    def __init__(self) -> None:
        self._bracket = ThreadBracket(open_clock())
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
