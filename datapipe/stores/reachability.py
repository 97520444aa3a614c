"""Which hosts of stores have been reached. One that never was is given up soon: its name or port is wrong, or it is offline."""

from __future__ import annotations

import threading

from datapipe.stores.location import Location

UNREACHED_S = 2.0  # for a host that has never been reached, from the begin of the first attempt

_lock = threading.Lock()
_reached: set[tuple[str, str]] = set()  # scheme and root
_tried_s: dict[tuple[str, str], float] = {}  # when the first attempt began at those that were not, by time.monotonic


def note_reached(location: Location) -> None:
    """Record that the location's host has accepted a connection."""
    place = location.scheme, location.root
    if place not in _reached:
        with _lock:
            _reached.add(place)
            _tried_s.pop(place, None)


def patience_s(location: Location, since_s: float, timeout_s: float) -> float:
    """Return for how many seconds from `since_s` on to retry where no connection is made; 0 or less for not at all.

    `since_s`: by time.monotonic, when the attempts began. `timeout_s`: for a host that was reached before, and may come back.
    """
    place = location.scheme, location.root
    with _lock:
        if place in _reached:
            return timeout_s
        first_s = _tried_s.setdefault(place, since_s)
    return min(timeout_s, first_s + UNREACHED_S - since_s)


def forget_reached() -> None:
    """Take every host for one that was never reached."""
    with _lock:
        _reached.clear()
        _tried_s.clear()
