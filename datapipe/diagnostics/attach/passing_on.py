"""Meters that stand before another one: all is passed on, but for what they are there for."""

from __future__ import annotations

from datapipe.diagnostics.attach.watching import Meter, MeteredPass


class PassingMeter:
    """What is noted goes to the inner meter."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.note_sync, self.note_update = meter.note_sync, meter.note_update
        self.begin_copy, self.end_copy = meter.begin_copy, meter.end_copy


class PassingPass:
    """A pass of such a meter."""

    __slots__ = ("_inner",)

    def __init__(self, inner: MeteredPass) -> None:
        self._inner = inner

    @property
    def is_evaluation(self) -> bool:
        return self._inner.is_evaluation

    @is_evaluation.setter
    def is_evaluation(self, value: bool) -> None:
        self._inner.is_evaluation = value

    def stop(self) -> None:
        self._inner.stop()
