"""A pool of objects that are costly to make and serve one thread at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ObjectPool(Generic[T]):
    """Lends objects that `make` makes. Thread-safe, without a lock: a garbage collection under one could wait for itself."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []  # append and pop are atomic

    def borrow(self) -> T:
        """Return an object that is the borrower's alone until it is given back, or for ever."""
        try:
            return self._free.pop()
        except IndexError:
            return self._make()

    def give_back(self, thing: T) -> None:
        """Make the object available again."""
        self._free.append(thing)
