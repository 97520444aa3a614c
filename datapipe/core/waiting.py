"""Report what a process waits for, once the wait has lasted a few seconds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from datapipe.core.printable import get_logger

SILENT_S = 3.0  # shorter waits are not reported

logger = get_logger(__name__)


class Wait:
    """A wait that is reported at most once. Thread-safe.

    `what`: what is waited for. `reason`: why it takes time, or a function that returns that; it may change meanwhile.
    """

    def __init__(self, what: str, reason: str | Callable[[], str]) -> None:
        self.what, self.reason = what, reason
        self._since_s = time.monotonic()
        self._is_reported = False

    def report_if_long(self) -> None:
        """Log a warning if the wait has lasted `SILENT_S` seconds and was not reported."""
        elapsed_s = time.monotonic() - self._since_s
        if elapsed_s >= SILENT_S and not self._is_reported:
            self._is_reported = True
            reason = self.reason if isinstance(self.reason, str) else self.reason()
            logger.warning("waiting for %s (%s, since %.0f s)", self.what, reason, elapsed_s)


@contextlib.contextmanager
def reported_wait(what: str, reason: str | Callable[[], str]) -> Iterator[Wait]:
    """Wait within the block, and report it after `SILENT_S` seconds, from another thread.

    `what`, `reason`: as of `Wait`. Not for steps of a loader that runs: its user's program prints, and nobody asked.
    """
    wait = Wait(what, reason)
    timer = threading.Timer(SILENT_S, wait.report_if_long)
    timer.daemon = True
    timer.start()
    try:
        yield wait
    finally:
        timer.cancel()
        timer.join()  # so that no thread is left, which a fork would warn about
