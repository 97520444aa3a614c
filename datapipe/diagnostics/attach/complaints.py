"""Our own failures: told once each, and never the script's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from datapipe.printable import printable

_told: set[str] = set()
_listeners: list[Callable[[str], None]] = []


def complain(what: str, exc: BaseException | None = None) -> None:
    """One line on stderr for each `what`, from each process."""
    with suppress(Exception):
        message = printable(what if exc is None else f"{what}: {type(exc).__name__}: {exc}")
        key = f"{os.getpid()} {what}"
        if key not in _told:
            _told.add(key)
            print(f"datapipe diagnose: {message}; the script goes on", file=sys.stderr)
            for listener in _listeners:
                listener(message)


def add_listener(listener: Callable[[str], None]) -> None:
    """Tell `listener` of complaints that follow."""
    _listeners.append(listener)


def remove_listener(listener: Callable[[str], None]) -> None:
    """Tell it no more."""
    with suppress(ValueError):
        _listeners.remove(listener)
