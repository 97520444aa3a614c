"""Repeat a piece of work of the calling thread as long as its failures may pass."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from datapipe.core.waiting import Wait, reported_wait
from datapipe.errors import DatapipeError
from datapipe.stores.failures import NO_ANSWER, TIMEOUT_S, Failure, examine, given_up, pause_s, retry_s, told
from datapipe.stores.location import WEB_SCHEMES, Location
from datapipe.stores.opening import open_store
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
        self._timeout_s = timeout_s
        self._wait = Wait(str(location), NO_ANSWER) if wait is None else wait
        self.num_failed, self._last_s = 0, time.monotonic()
        self._failure: Failure | None = None

    @property
    def left_s(self) -> float:
        """Return for how many seconds the next attempt may last."""
        return max(0.0, self._last_s + self._timeout_s - time.monotonic())

    def succeeded(self) -> None:
        """Begin to count failures and seconds again, as some of the work is done."""
        note_reached(self._location)
        self.num_failed, self._last_s, self._wait = 0, time.monotonic(), Wait(str(self._location), NO_ANSWER)
        self._failure = None

    def failed(self, failure: Failure) -> None:
        """Wait until the next attempt is due. Raises MissingDataError or StorageError if there is to be none."""
        failure = self._failure = told(failure, self._failure)
        left_s = retry_s(failure, self._location, since_s=self._last_s, timeout_s=self._timeout_s)
        if not left_s:
            elapsed_s, tried = time.monotonic() - self._last_s, self.num_failed + 1
            failure = _with_target(failure, self._location)
            raise given_up(failure, self._location, elapsed_s=elapsed_s, attempts=tried, timeout_s=self._timeout_s) from None
        self._wait.reason = failure.what
        self._wait.report_if_long()
        time.sleep(min(pause_s(self.num_failed), left_s))
        self.num_failed += 1


def _with_target(failure: Failure, location: Location) -> Failure:
    if location.scheme in WEB_SCHEMES:
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


def answered(ask: Callable[[ObjectStore], Awaitable[T]], location: Location, *, timeout_s: float = TIMEOUT_S) -> T:
    """Return what a location's store answers, asked again as `retried` does it. `ask`: makes one request of the store."""
    return retried(lambda left_s: requests().call(lambda: ask(open_store(location)), left_s), location, timeout_s=timeout_s)
