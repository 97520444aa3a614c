"""Decide whether to try again after a failure, and when."""

from __future__ import annotations

import time

from datapipe.stores.failures import Cause, Failure, pause_s
from datapipe.stores.hub.targets import renew
from datapipe.stores.location import HUB_SCHEME, Location
from datapipe.stores.reachability import note_reached, patience_s

_MOST_WAITS = 10  # that a server asks for, in a row
_MOST_RENEWALS = 2


class Patience:
    """For how long attempts at one piece of work go on: until nothing has succeeded for `timeout_s`.

    What a server asks to wait does not count, but no server may ask for ever.
    """

    def __init__(self, location: Location, timeout_s: float) -> None:
        self._location, self.timeout_s = location, timeout_s
        self.since_s = time.monotonic()  # nothing has succeeded
        self.num_failed = self._num_waits = 0

    @property
    def left_s(self) -> float:
        """Return for how many seconds the next attempt may last."""
        return max(0.0, self.since_s + self.timeout_s - time.monotonic())

    def pause_s(self, failure: Failure) -> float | None:
        """Return how many seconds to wait before the next attempt, after one that failed; None: there is to be none."""
        pause = self._pause_s(failure)
        self.num_failed += 1
        return pause

    def _pause_s(self, failure: Failure) -> float | None:
        if failure.wait_s and self._num_waits < _MOST_WAITS:
            self._num_waits += 1
            self.since_s += failure.wait_s
            return failure.wait_s
        location, timeout_s = self._location, self.timeout_s
        if failure.kind is Cause.DENIED and location.scheme == HUB_SCHEME and self.num_failed < _MOST_RENEWALS:
            renew(location.root, location.key)  # its signature may have expired
            return pause_s(self.num_failed)
        if failure.kind is Cause.UNREACHED:
            timeout_s = patience_s(location, self.since_s, timeout_s)
        elif failure.kind is not Cause.SILENT:
            note_reached(location)
        left_s = max(0.0, self.since_s + timeout_s - time.monotonic()) if failure.may_pass else 0.0
        return min(pause_s(self.num_failed), left_s) if left_s else None
