"""Things that serve one thread at a time and are costly to make: lent, given back, lent again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lending(Generic[T]):
    """Lends what `make` makes. Thread-safe."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []
        self._lock = threading.Lock()

    def borrow(self) -> T:
        """The borrower's alone until it is given back, or for ever."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return self._make()

    def give_back(self, thing: T) -> None:
        with self._lock:
            self._free.append(thing)
