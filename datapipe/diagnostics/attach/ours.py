"""Our package beside a package of the user's that has its name."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
_NAME = "datapipe"
_lock = threading.RLock()
_hidden: dict[str, ModuleType] | None = None  # ours, where the name is the user's


def is_name_taken() -> bool:
    """Whether `import datapipe` would give, or has given, the script something else than this package."""
    spec = PathFinder.find_spec(_NAME, sys.path)
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or ()), *filter(None, [spec.origin])]
    return not any(Path(place).resolve().is_relative_to(ROOT / _NAME) for place in places)


def step_aside() -> None:
    """Leave the name to the script. From here on ours is imported within `ours()` only."""
    global _hidden
    with _lock:
        if _hidden is None:
            _hidden = _take_out()


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """`import datapipe` gives this package here, in all threads; elsewhere what it gave before."""
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
    return _hidden is not None


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in list(sys.modules) if name == _NAME or name.startswith(_NAME + ".")]
    return {name: sys.modules.pop(name) for name in names}
