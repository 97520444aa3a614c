"""Things that serve one thread at a time and are costly to make: lent, given back, lent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lending(Generic[T]):
    """Lends what `make` makes. Thread-safe, without a lock: a collection while one is held may join threads that wait for it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []  # append and pop are atomic

    def borrow(self) -> T:
        """The borrower's alone until it is given back, or for ever."""
        try:
            return self._free.pop()
        except IndexError:
            return self._make()

    def give_back(self, thing: T) -> None:
        self._free.append(thing)
