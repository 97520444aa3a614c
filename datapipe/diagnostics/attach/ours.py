"""This package inside another program: failures are reported once and never end the script, and its name may be taken."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from datapipe.core.printable import printable

_told: set[str] = set()
_listeners: list[Callable[[str], None]] = []


def complain(what: str, exc: BaseException | None = None) -> None:
    """Print one line on stderr for each `what`, in each process."""
    with suppress(Exception):
        message = printable(what if exc is None else f"{what}: {type(exc).__name__}: {exc}")
        key = f"{os.getpid()} {what}"
        if key not in _told:
            _told.add(key)
            print(f"datapipe diagnose: {message}; the script continues", file=sys.stderr)
            for listener in _listeners:
                listener(message)


def add_listener(listener: Callable[[str], None]) -> None:
    """Call `listener` with later complaints."""
    _listeners.append(listener)


def remove_listener(listener: Callable[[str], None]) -> None:
    """Stop calling `listener`."""
    with suppress(ValueError):
        _listeners.remove(listener)


ROOT = Path(__file__).resolve().parents[3]
_NAME = "datapipe"
_lock = threading.RLock()
_hidden: dict[str, ModuleType] | None = None  # our modules, if the name belongs to the user


def is_name_taken() -> bool:
    """Return True if `import datapipe` in the script gives something other than this package."""
    spec = PathFinder.find_spec(_NAME, sys.path)
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
    return not any(Path(place).resolve().is_relative_to(ROOT / _NAME) for place in places)


def step_aside() -> None:
    """Leave the name to the script. From then on this package can be imported only within `ours()`."""
    global _hidden
    with _lock:
        if _hidden is None:
            _hidden = _take_out()


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """Make `import datapipe` give this package inside the block, in all threads; afterwards what it gave before."""
    global _hidden
    with _lock:
        if _hidden is None:
            yield
            return
        theirs, mine = _take_out(), _hidden
        sys.modules.update(mine)
        _hidden = None
        try:
            yield
        finally:
            _hidden = _take_out()
            sys.modules.update(theirs)


def has_stepped_aside() -> bool:
    """Return True after `step_aside`."""
    return _hidden is not None


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in list(sys.modules) if name == _NAME or name.startswith(_NAME + ".")]
    return {name: sys.modules.pop(name) for name in names}
