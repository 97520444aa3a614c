"""A meter that wraps another one: NVTX ranges around steps, and actions at given training steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datapipe.core.atomic import refuse_to_replace
from datapipe.instruments.attach.ours import complain
from datapipe.instruments.attach.step_counter import StepCounter
from datapipe.instruments.measure.watching import Meter, MeteredPass
from datapipe.instruments.torch_stages.ranges import Recorder

Tap = Callable[[int], bool]  # called before every step with the number of training steps so far; returns True to measure this one

PROFILE_FROM, PROFILE_STEPS = 20, 10


def until(num_steps: int, act: Callable[[], None]) -> Tap:
    """Return a tap that measures `num_steps` steps and then calls `act`, once."""
    is_over = False

    def tap(num_done: int) -> bool:
        nonlocal is_over
        if num_done >= num_steps and not is_over:
            is_over = True
            act()
        return not is_over

    return tap


class ProfilerWindow:
    """A `Tap` that profiles a few steps with torch's profiler. They are not measured, since it slows them down.

    Writes `profile-PID.json`, a Chrome trace, to `directory`.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"profile-{os.getpid()}.json"
        self._profiler: Any = None
        self._is_over = False

    def __call__(self, num_done: int) -> bool:
        if self._is_over or num_done < PROFILE_FROM:
            return True
        try:
            if self._profiler is None:
                import torch

                self._profiler = torch.profiler.profile(record_shapes=False)
                self._profiler.__enter__()
            elif num_done >= PROFILE_FROM + PROFILE_STEPS:
                self.close()
        except Exception as exc:
            self._is_over = True
            complain("no profile could be taken", exc)
        return self._is_over

    def close(self) -> None:
        """End the window, if one is open, and write its trace."""
        if self._profiler is not None and not self._is_over:
            self._is_over = True
            self._profiler.__exit__(None, None, None)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            refuse_to_replace(self._path)
            self._profiler.export_chrome_trace(str(self._path))


class HookedMeter:
    """A meter that passes its observations to an inner meter, with taps before its steps and NVTX ranges around them.

    `ends_after`: the number of training steps after which the script is ended, when it requests a batch too many; a script that
    finishes them by itself runs to its own end. `recorder`: of the ranges; None: there are none. `counter`: of
    operations, one of the taps; None: there is none.
    """

    def __init__(
        self,
        meter: Meter,
        *,
        taps: Sequence[Tap] = (),
        ends_after: int | None = None,
        recorder: Recorder | None = None,
        counter: StepCounter | None = None,
    ) -> None:
        self._meter = meter
        self.note_sync, self.note_update = meter.note_sync, meter.note_update
        self.begin_copy, self.end_copy = meter.begin_copy, meter.end_copy
        self.taps, self.ends_after, self.recorder, self.counter = taps, ends_after, recorder, counter
        self.num_done = 0  # training steps begun

    def open_pass(self, *, loader: int = 0) -> HookedPass:
        return HookedPass(self, self._meter.open_pass(loader=loader))


class HookedPass:
    """A pass of a `HookedMeter`. The range of a step may overlap the script's own ranges, such as one around an epoch."""

    __slots__ = ("_inner", "_is_inside", "_is_measured", "_meter", "_step")

    def __init__(self, meter: HookedMeter, inner: MeteredPass) -> None:
        self._meter, self._inner = meter, inner
        self._is_measured = False  # the step in progress
        self._is_inside = False  # in the range of next()
        self._step: list[Any] = []  # the range of the step in progress, if any

    @property
    def is_evaluation(self) -> bool:
        return self._inner.is_evaluation

    @is_evaluation.setter
    def is_evaluation(self, value: bool) -> None:
        self._inner.is_evaluation = value

    def begin(self, num_ready: int | None = None) -> None:
        answers = [tap(self._meter.num_done) for tap in self._meter.taps]  # every tap is called
        self._meter.num_done += not self.is_evaluation
        was_measured, self._is_measured = self._is_measured, all(answers)
        if self._is_measured:
            self._leave()
            self._inner.begin(num_ready)
            if self._meter.recorder is not None:
                self._meter.recorder.push("next()")
                self._is_inside = True
        elif was_measured:
            self.stop()

    def end(self) -> None:
        if self._is_measured:
            self._leave()
            self._inner.end()
            if self._meter.recorder is not None:
                self._step.append(self._meter.recorder.start("evaluation step" if self.is_evaluation else "training step"))
        if self._meter.counter is not None and not self.is_evaluation:
            self._meter.counter.begin_step()
        most = self._meter.ends_after
        if most is not None and self._meter.num_done + self.is_evaluation > most:
            raise SystemExit(0)

    def stop(self) -> None:
        self._leave()
        self._inner.stop()

    def _leave(self) -> None:
        recorder = self._meter.recorder
        if recorder is not None and self._is_inside:
            self._is_inside = False
            recorder.pop()
        while recorder is not None and self._step:
            recorder.end(self._step.pop())
