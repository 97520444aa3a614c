"""Puts NVTX ranges around each `next()` and each step, where they were asked for."""

from __future__ import annotations

from typing import Any

from datapipe.diagnostics.attach.passing_on import PassingMeter, PassingPass
from datapipe.diagnostics.attach.watching import Meter, MeteredPass
from datapipe.diagnostics.torch_stages.ranges import Recorder


class RangedMeter(PassingMeter):
    """A meter that has its steps recorded."""

    def __init__(self, meter: Meter, recorder: Recorder) -> None:
        super().__init__(meter)
        self._recorder = recorder

    def open_pass(self, *, loader: int = 0, is_evaluation: bool = False) -> RangedPass:
        return RangedPass(self._meter.open_pass(loader=loader, is_evaluation=is_evaluation), self._recorder)


class RangedPass(PassingPass):
    """A pass of such a meter. Steps may cross ranges of the script's own, such as one around an epoch."""

    __slots__ = ("_is_inside", "_recorder", "_step")

    def __init__(self, inner: MeteredPass, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder = recorder
        self._is_inside = False  # next()
        self._step: list[Any] = []  # the range of the step under way, if there is one

    def begin(self, num_ready: int | None = None) -> None:
        self._leave()
        self._inner.begin(num_ready)
        self._recorder.push("next()")
        self._is_inside = True

    def end(self) -> None:
        self._leave()
        self._inner.end()
        self._step.append(self._recorder.start("evaluation step" if self.is_evaluation else "training step"))

    def stop(self) -> None:
        self._leave()
        super().stop()

    def _leave(self) -> None:
        if self._is_inside:
            self._is_inside = False
            self._recorder.pop()
        while self._step:
            self._recorder.end(self._step.pop())
