"""Keep the results of the engine's trials, which each process needs before it records; other processes take them over.

The CPU time of that is counted, as short passes of fresh workers pay it again and again.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
Trial = tuple[str, tuple[Hashable, ...]]  # its name, and what was tried

_MOST = 1024  # results that are kept
_results: dict[Trial, str | None] = {}
_news: dict[Trial, str | None] = {}  # those that were found here, and not told yet


class _LocalTime(threading.local):
    seconds = 0.0
    is_running = False


_local = _LocalTime()


def counted_once(function: _Function) -> _Function:
    """Count the time of a function, which is called once for each thing that a process needs."""

    @functools.wraps(function)
    def counting(*args: Any, **kwargs: Any) -> Any:
        if _local.is_running:
            return function(*args, **kwargs)
        began, _local.is_running = time.thread_time(), True
        try:
            return function(*args, **kwargs)
        finally:
            _local.is_running = False
            _local.seconds += time.thread_time() - began

    return counting  # type: ignore[return-value]


def taken_seconds() -> float:
    """Return the seconds of this thread since the last call."""
    seconds, _local.seconds = _local.seconds, 0.0
    return seconds


def tried_once(function: _Function) -> _Function:
    """Keep the results of a trial: why the engine does not do what the arguments say; None: it does."""
    name, counting = function.__name__, counted_once(function)

    @functools.wraps(function)
    def known(*what: Hashable) -> str | None:
        trial = (name, what)
        try:
            return _results[trial]
        except KeyError:
            pass
        found: str | None = counting(*what)
        if len(_results) >= _MOST:
            _results.clear()
        _results[trial] = _news[trial] = found
        return found

    return known  # type: ignore[return-value]


def taken_news() -> Mapping[Trial, str | None] | None:
    """Return the results that this process has found since the last call; None if there are none."""
    if not _news:
        return None
    news = dict(_news)
    _news.clear()
    return news


def learn(news: Mapping[Trial, str | None]) -> None:
    """Take over what another process, of the same machine and installation, has found."""
    _results.update(news)


def forget() -> None:
    """Forget all results, so that everything is tried again."""
    _results.clear()
    _news.clear()
