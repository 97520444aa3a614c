"""SIGTERM and Ctrl-C while training: noted, so that the step can be finished and the run saved."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_HEEDED = (signal.SIGTERM, signal.SIGINT)


_ONE_AND_THE_SAME_S = 1.0  # a terminal and a launcher both pass a Ctrl-C on


class Heard:
    """The signal that came, if any. After a further Ctrl-C, a second later or more, the process ends at once."""

    def __init__(self) -> None:
        self.number = 0
        self._at_s = 0.0
        self._process = os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a loader's worker, forked meanwhile: a Ctrl-C is for us to see to
            if number != signal.SIGINT:
                obey(number)
            return
        if not self.number:
            self.number, self._at_s = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._at_s > _ONE_AND_THE_SAME_S:
            obey(number)


@contextlib.contextmanager
def listening() -> Iterator[Heard]:
    """Note SIGTERM and SIGINT instead of obeying them. In other threads than the main one nothing is noted."""
    heard = Heard()
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    before = {number: signal.signal(number, heard) for number in _HEEDED}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def obey(number: int) -> NoReturn:
    """KeyboardInterrupt for SIGINT; for others SystemExit with 128 + their number, as shells count."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
