"""Repeat a piece of work of the calling thread as long as its failures may pass."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from datapipe.core.waiting import Wait, reported_wait
from datapipe.errors import DatapipeError
from datapipe.stores.failures import NO_ANSWER, TIMEOUT_S, Failure, examine, given_up, told
from datapipe.stores.location import BUCKET_SCHEMES, Location
from datapipe.stores.opening import reach
from datapipe.stores.patience import Patience
from datapipe.stores.reachability import note_reached
from datapipe.stores.redirects import LOOK_S, with_target
from datapipe.stores.requests import requests

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")


class Attempts:
    """The attempts of the calling thread at one piece of work, until nothing has succeeded for too long.

    `location`: what messages name. `timeout_s`: seconds without success after which it has failed. `wait`: what reports
    failures that go on; None: one of its own.
    """

    def __init__(self, location: Location, *, timeout_s: float = TIMEOUT_S, wait: Wait | None = None) -> None:
        self._location = location
        self._patience = Patience(location, timeout_s)
        self._wait = Wait(str(location), NO_ANSWER) if wait is None else wait
        self._failure: Failure | None = None

    @property
    def left_s(self) -> float:
        """Return for how many seconds the next attempt may last."""
        return self._patience.left_s

    @property
    def num_failed(self) -> int:
        """Return how many attempts have failed since the last success."""
        return self._patience.num_failed

    def succeeded(self) -> None:
        """Begin to count failures and seconds again, as some of the work is done."""
        note_reached(self._location)
        self._patience, self._wait = Patience(self._location, self._patience.timeout_s), Wait(str(self._location), NO_ANSWER)
        self._failure = None

    def failed(self, failure: Failure) -> None:
        """Wait until the next attempt is due. Raises MissingDataError or StorageError if there is to be none."""
        failure = self._failure = told(failure, self._failure)
        pause = self._patience.pause_s(failure)
        if pause is None:
            raise self._error(_with_target(failure, self._location)) from None
        self._wait.reason = failure.what
        if not failure.wait_s:  # which is told to one process for all
            self._wait.report_if_long()
        time.sleep(pause)

    def _error(self, failure: Failure) -> DatapipeError:
        elapsed_s, timeout_s = time.monotonic() - self._patience.since_s, self._patience.timeout_s
        return given_up(failure, self._location, elapsed_s=elapsed_s, attempts=self.num_failed, timeout_s=timeout_s)


def _with_target(failure: Failure, location: Location) -> Failure:
    if location.scheme not in BUCKET_SCHEMES:
        with contextlib.suppress(TimeoutError):
            return requests().call(lambda: with_target(failure, location), 2 * LOOK_S)
    return failure


def retried(attempt: Callable[[float], T], location: Location, *, timeout_s: float = TIMEOUT_S) -> T:
    """Return what `attempt` returns, made again as long as its failure may pass, from the calling thread.

    `attempt`: is given the seconds that are left to it, after which it raises TimeoutError. `location`, `timeout_s`: as of
    `Attempts`. A long wait is reported. Raises MissingDataError and StorageError.
    """
    with reported_wait(str(location), NO_ANSWER) as wait:
        attempts = Attempts(location, timeout_s=timeout_s, wait=wait)
        while True:
            try:
                found = attempt(attempts.left_s)
            except DatapipeError:  # no client could be opened
                raise
            except Exception as exc:
                attempts.failed(examine(exc, location))
            else:
                attempts.succeeded()
                return found


def answered(ask: Callable[[ObjectStore, str], Awaitable[T]], location: Location, *, timeout_s: float = TIMEOUT_S) -> T:
    """Return what a location's store answers, asked again as `retried` does it. `ask`: makes one request, by a key."""

    async def asked() -> T:
        return await ask(*await reach(location))

    return retried(lambda left_s: requests().call(asked, left_s), location, timeout_s=timeout_s)
