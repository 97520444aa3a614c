"""Call pylance: each process opens a dataset once, none goes on after a fork, and the library's panics are errors."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from datapipe.core.environment import install_command
from datapipe.errors import DependencyError, LifecycleError

_MOST_OPEN = 64
_T = TypeVar("_T")


class LanceError(ValueError):
    """A failure of the library, mostly for damage."""


DAMAGE = (pa.ArrowException, ValueError, KeyError, OverflowError)

_open: OrderedDict[tuple[str, int, tuple[int, int]], Any] = OrderedDict()
_lock = threading.Lock()
_is_lost = False  # in a child that was forked after the library was loaded, whose threads do not exist there


def _note_fork() -> None:
    global _is_lost
    _is_lost = "lance" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


def _check_process() -> None:
    """Raise LifecycleError in a child that was forked after the library was loaded, where it would wait for ever."""
    if _is_lost:
        raise LifecycleError(
            "pylance was loaded in this process before it forked, and cannot read Lance datasets in the child; start processes "
            "by 'spawn': multiprocessing.get_context('spawn')"
        )


def library(where: object) -> Any:
    """Return the library. Raises DependencyError if it is not installed."""
    try:
        import lance
    except ImportError as exc:
        raise DependencyError(f"{where}: Lance datasets need pylance; {install_command('lance')}") from exc
    return lance


def opened(place: Path, version: int, stamp: tuple[int, int]) -> Any:
    """Return a dataset at a version. `stamp`: of its manifest's file, with which another dataset begins.

    Raises LanceError, DependencyError, FileNotFoundError if it is not there, and LifecycleError in a forked child.
    """
    _check_process()
    key = str(place), version, stamp
    with _lock:
        found = _open.get(key)
    if found is None:
        if not place.is_dir():
            raise FileNotFoundError(f"{place}: no such folder")
        found = asked(lambda: _dataset(place, version))
        with _lock:
            _open[key] = found
            while len(_open) > _MOST_OPEN:
                _open.popitem(last=False)
    return found


def _dataset(place: Path, version: int) -> Any:
    found = library(place).dataset(str(place), version=version)
    _ = found.schema  # where a damaged one panics; not again, where this was well
    return found


def version_of_tag(place: Path, tag: str) -> int | None:
    """Return the version that a tag names; None if there is no such tag. Raises DependencyError."""
    _check_process()
    try:
        return int(asked(lambda: library(place).dataset(str(place), version=tag).version))
    except LanceError:
        return None


def asked(ask: Callable[[], _T]) -> _T:
    """Return what the library answers. Raises LanceError for its errors and panics, of one line."""
    try:
        return ask()
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, DependencyError):
        raise
    except BaseException as exc:
        if not isinstance(exc, Exception) and type(exc).__name__ != "PanicException":
            raise
        raise LanceError(_line(exc)) from None


def _line(exc: BaseException) -> str:
    """Return the first line of an error, without the places in the library's own source."""
    text = str(exc).partition("\n")[0].partition(", /home/")[0]
    return f"{text:.200}" or type(exc).__name__
