"""Look at many files or objects for an index: one by one where computing takes most of the time, else in threads."""

from __future__ import annotations

import itertools
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

_CHUNK = 64  # files whose waits are judged together
_NUM_THREADS = 16  # which wait for a store or a slow disk most of the time
_MAX_AHEAD = 64  # looks that are held for those before them


def look_at_each(look: Callable[[int], _T], num: int, *, is_remote: bool) -> Iterator[_T]:
    """Yield what `look` returns for each of the numbers below `num`, in order.

    Threads fight over the interpreter's lock: with files in the page cache, two take 1.4 to 3 times as long as one. So there are
    none until a chunk of files has waited longer than it has computed; for what is `is_remote` there are from the beginning.
    """
    numbers = iter(range(num))
    if not is_remote:
        yield from _until_waiting(look, numbers)
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        ahead: deque[Future[_T]] = deque()
        for number in numbers:
            ahead.append(pool.submit(look, number))
            if len(ahead) > _MAX_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _until_waiting(look: Callable[[int], _T], numbers: Iterator[int]) -> Iterator[_T]:
    while chunk := list(itertools.islice(numbers, _CHUNK)):
        before, started = resource.getrusage(resource.RUSAGE_THREAD), time.perf_counter()
        found = [look(number) for number in chunk]
        passed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_THREAD)
        computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        yield from found
        # A busy machine lets wait as well, and no thread helps there: who waits for a disk gives the core up by itself.
        if passed > 2 * computed and after.ru_nvcsw - before.ru_nvcsw >= len(chunk):
            return
