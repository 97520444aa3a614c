"""Puts NVTX ranges around each `next()` and each step, where they were asked for."""

from __future__ import annotations

from typing import Any

from datapipe.diagnostics.attach.watching import Meter, MeteredPass
from datapipe.diagnostics.torch_stages.ranges import Recorder


class RangedMeter:
    """A meter that has its steps recorded."""

    def __init__(self, meter: Meter, recorder: Recorder) -> None:
        self._meter = meter
        self._recorder = recorder
        self.note_sync, self.note_update = meter.note_sync, meter.note_update
        self.begin_copy, self.end_copy = meter.begin_copy, meter.end_copy

    def open_pass(self, *, loader: int = 0, is_evaluation: bool = False) -> RangedPass:
        return RangedPass(self._meter.open_pass(loader=loader, is_evaluation=is_evaluation), self._recorder)


class RangedPass:
    """A pass of such a meter. Steps may cross ranges of the script's own, such as one around an epoch."""

    __slots__ = ("_inner", "_is_inside", "_recorder", "_step")

    def __init__(self, inner: MeteredPass, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder
        self._is_inside = False  # next()
        self._step: list[Any] = []  # the range of the step under way, if there is one

    @property
    def is_evaluation(self) -> bool:
        return self._inner.is_evaluation

    @is_evaluation.setter
    def is_evaluation(self, value: bool) -> None:
        self._inner.is_evaluation = value

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
        self._inner.stop()

    def _leave(self) -> None:
        if self._is_inside:
            self._is_inside = False
            self._recorder.pop()
        while self._step:
            self._recorder.end(self._step.pop())
