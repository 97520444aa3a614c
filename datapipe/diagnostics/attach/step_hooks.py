"""Meters that stand before another one: NVTX ranges around steps, and actions at given training steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datapipe.atomic import refuse_to_replace
from datapipe.diagnostics.attach.ours import complain
from datapipe.diagnostics.attach.watching import Meter, MeteredPass
from datapipe.diagnostics.torch_stages.ranges import Recorder


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


Tap = Callable[[int], bool]  # asked before every step, with how many training steps there were; whether to measure this one

PROFILE_FROM, PROFILE_STEPS = 20, 10


def until(num_steps: int, act: Callable[[], None]) -> Tap:
    """Measure so many steps; then call `act`, once."""
    is_over = False

    def tap(num_done: int) -> bool:
        nonlocal is_over
        if num_done >= num_steps and not is_over:
            is_over = True
            act()
        return not is_over

    return tap


class ProfilerWindow:
    """A `Tap` that has torch's profiler look at a few steps, which are not measured then: it slows them down.

    Writes `profile-PID.json`, a Chrome trace, into `directory`.
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
        """End the window, if one is open, and write what it saw."""
        if self._profiler is not None and not self._is_over:
            self._is_over = True
            self._profiler.__exit__(None, None, None)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            refuse_to_replace(self._path)
            self._profiler.export_chrome_trace(str(self._path))


class TappedMeter(PassingMeter):
    """A meter that asks taps before each step, and may end the script when it gets a batch too many.

    `ends_after`: training steps after which that is; a script that is done with them by itself goes on to its own end.
    """

    def __init__(self, meter: Meter, taps: Sequence[Tap], *, ends_after: int | None = None) -> None:
        super().__init__(meter)
        self.taps = taps
        self.ends_after = ends_after
        self.num_done = 0  # training steps begun

    def open_pass(self, *, loader: int = 0, is_evaluation: bool = False) -> TappedPass:
        return TappedPass(self, self._meter.open_pass(loader=loader, is_evaluation=is_evaluation))


class TappedPass(PassingPass):
    """A pass of such a meter."""

    __slots__ = ("_is_measured", "_meter")

    def __init__(self, meter: TappedMeter, inner: MeteredPass) -> None:
        super().__init__(inner)
        self._meter = meter
        self._is_measured = False  # the step under way

    def begin(self, num_ready: int | None = None) -> None:
        answers = [tap(self._meter.num_done) for tap in self._meter.taps]  # each is asked
        is_wanted = all(answers)
        self._meter.num_done += not self._inner.is_evaluation
        if is_wanted:
            self._inner.begin(num_ready)
        elif self._is_measured:
            self._inner.stop()
        self._is_measured = is_wanted

    def end(self) -> None:
        if self._is_measured:
            self._inner.end()
        most = self._meter.ends_after
        if most is not None and self._meter.num_done + self._inner.is_evaluation > most:
            raise SystemExit(0)
