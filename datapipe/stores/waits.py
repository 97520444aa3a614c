"""How long each thread has waited for a store, so that the time is not taken for work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

_waits = threading.local()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Count the time within the block as the calling thread's waiting; blocks within one another count once."""
    if getattr(_waits, "is_waiting", False):
        yield
        return
    _waits.is_waiting = True
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        _waits.is_waiting = False
        _waits.ns = getattr(_waits, "ns", 0) + time.perf_counter_ns() - start_ns


def take_waited_ns() -> int:
    """Return how long the calling thread has waited since it asked last, in nanoseconds."""
    waited_ns: int = getattr(_waits, "ns", 0)
    _waits.ns = 0
    return waited_ns
