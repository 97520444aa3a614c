"""Have the operating system read parts of mapped files before they are needed."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

Key = TypeVar("Key")


class Span(NamedTuple):
    """Mapped memory: its address, and its length in bytes."""

    start: int
    nbytes: int


def announce(spans: Iterable[Span]) -> None:
    """Ask for these parts of mapped files to be read in the background. Does nothing where the system cannot."""
    advise = _advise()
    if advise is None:
        return
    for start, nbytes in spans:
        page = start & -mmap.PAGESIZE
        advise(page, start + nbytes - page, mmap.MADV_WILLNEED)


def announced(keys: Iterator[Key], tell: Callable[[Key], Any], *, num_ahead: int) -> Iterator[Key]:
    """Yield `keys`, each told so many keys before it is yielded. An error of `keys` comes after the keys before it."""
    waiting: deque[Key] = deque()
    error = None
    while error is None:
        try:
            key = next(keys)
        except StopIteration:
            break
        except Exception as exc:
            error = exc
            break
        tell(key)
        waiting.append(key)
        if len(waiting) > num_ahead:
            yield waiting.popleft()
    yield from waiting
    if error is not None:
        raise error


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux") or not hasattr(mmap, "MADV_WILLNEED"):
        return None
    try:
        function: Any = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return function  # type: ignore[no-any-return]
