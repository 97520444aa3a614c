"""When a failed attempt is made again: after a random pause that doubles, until nothing has succeeded for too long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from datapipe.core.errors import DatapipeError
from datapipe.stores.failures import examine
from datapipe.stores.location import Location

TIMEOUT_S = 120.0  # without success, after which a request has failed
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0

T = TypeVar("T")


def pause_s(attempts: int) -> float:
    """Return how many seconds to wait before the next attempt, after so many that failed (0 for the first of them)."""
    return random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempts))


def retried(attempt: Callable[[], T], location: Location, *, timeout_s: float | None = None) -> T:
    """Return what `attempt` returns, made again as long as its failure may pass, in the calling thread.

    `location`: what messages name. `timeout_s`: seconds without success after which it has failed; None: 120. Raises
    MissingDataError and StorageError.
    """
    begun_s, attempts = time.monotonic(), 0
    while True:
        try:
            return attempt()
        except DatapipeError:  # no client could be opened
            raise
        except Exception as exc:
            failure = examine(exc, location)
            if not failure.may_pass or time.monotonic() - begun_s >= (TIMEOUT_S if timeout_s is None else timeout_s):
                raise failure.error(location) from None
            time.sleep(pause_s(attempts))
            attempts += 1
