"""SIGTERM and Ctrl-C: recorded at once, acted on after the step is finished and the run is saved."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from datapipe.training.checkpoint import TrainingState
from datapipe.training.process_group import Agreement

_HEEDED = (signal.SIGTERM, signal.SIGINT)
_ONE_AND_THE_SAME_S = 1.0  # a terminal and a launcher both deliver the same Ctrl-C


class StopSignal:
    """The signal that arrived, if any. A second Ctrl-C, at least a second later, ends the process at once."""

    def __init__(self) -> None:
        self.number = 0
        self._at_s = 0.0
        self._process = os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a loader's forked worker: the main process handles a Ctrl-C
            if number != signal.SIGINT:
                obey(number)
            return
        if not self.number:
            self.number, self._at_s = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._at_s > _ONE_AND_THE_SAME_S:
            obey(number)


@contextlib.contextmanager
def note_signals() -> Iterator[StopSignal]:
    """Record SIGTERM and SIGINT instead of acting on them. Outside the main thread nothing is recorded."""
    stop_signal = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop_signal
        return
    before = {number: signal.signal(number, stop_signal) for number in _HEEDED}
    try:
        yield stop_signal
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def obey(number: int) -> NoReturn:
    """Raise KeyboardInterrupt for SIGINT; for other signals SystemExit with 128 + their number, as shells do."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


class InterruptedRun(Exception):  # noqa: N818  (nothing went wrong)
    """Raised after all ranks agreed to stop and the run is saved."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Stopping:
    """Saves when due, and ends the run when a rank was told to stop. All ranks make the same calls."""

    def __init__(self, stop_signal: StopSignal, state: TrainingState) -> None:
        self._stop_signal, self._state = stop_signal, state
        self._agreement = Agreement(state.ranks)
        self._signal = 0  # for which all ranks stop
        self._saved_s = time.monotonic()

    def after_step(self) -> None:
        """Save if due. Raises InterruptedRun, with the state saved, if a rank was told to stop."""
        state, options = self._state, self._state.options
        every_minutes, every_steps = options.save_every_minutes, options.save_every_steps
        is_hour = state.ranks.leads and every_minutes is not None and time.monotonic() - self._saved_s > 60 * every_minutes
        self._signal, save = self._agreement(self._stop_signal.number, is_hour)
        if self._signal:
            self.end()
        if save or (every_steps is not None and state.place.step % every_steps == 0):
            self.save()

    def save(self) -> None:
        self._state.save()
        self._saved_s = time.monotonic()

    def asks_to_stop(self) -> bool:
        """Return True if validation should stop, asked between its batches; `end` is then called."""
        self._signal, _ = self._agreement(self._stop_signal.number, False)
        return self._signal != 0

    def end(self) -> None:
        """Save the state and raise InterruptedRun once every rank has arrived."""
        self._agreement.settle()
        self._state.save()
        self._state.ranks.gather(None)  # a launcher that sees one rank end kills the others, and rank 0 may still be writing
        raise InterruptedRun(self._signal)

    def close(self) -> None:
        """Complete the outstanding message before the ranks part."""
        self._agreement.settle()
