"""This package inside another program: failures are reported once and never end the script, and its name may be taken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from datapipe.core.printable import printable

_told: set[str] = set()
LISTENERS: list[Callable[[str], None]] = []  # called with later complaints


def complain(what: str, exc: BaseException | None = None) -> None:
    """Print one line on stderr for each `what`, in each process."""
    with suppress(Exception):
        message = printable(what if exc is None else f"{what}: {type(exc).__name__}: {exc}")
        key = f"{os.getpid()} {what}"
        if key not in _told:
            _told.add(key)
            print(f"datapipe diagnose: {message}; the script continues", file=sys.stderr)
            for listener in LISTENERS:
                listener(message)


ROOT = Path(__file__).resolve().parents[3]
_NAME = "datapipe"
NAME_TAKEN = "a package of yours is also named 'datapipe', so nothing is measured; rename it, or run from another folder"


def is_name_taken(path: Sequence[str]) -> bool:
    """Return True if `import datapipe` gives something other than this package where `path` is searched first."""
    spec = PathFinder.find_spec(_NAME, path)
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
    return not any(Path(place).resolve().is_relative_to(ROOT / _NAME) for place in places)


def leave() -> None:
    """Take this package out of the process, so that `import datapipe` gives the script's own."""
    for name in [name for name in list(sys.modules) if name == _NAME or name.startswith(_NAME + ".")]:
        del sys.modules[name]
