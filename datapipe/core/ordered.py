"""Compute values by threads, and take them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def map_in_order(function: Callable[[A], B], values: Iterable[A], *, num_threads: int) -> Iterator[B]:
    """Yield `function` of each value in order, computed a few ahead by threads. Closing it waits for those under way."""
    waiting: deque[Future[B]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for value in values:
                waiting.append(pool.submit(function, value))
                if len(waiting) > num_threads + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
