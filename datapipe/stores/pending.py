"""Requests that are under way, as the threads that wait for them see them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from datapipe.stores.location import Location
from datapipe.stores.waits import waiting

_LOOK_S = 1.0  # Ctrl-C in a thread that has just been let in may leave the others outside; they look again


@dataclass(slots=True)
class RemoteObject:
    """An object and what its first answer said of it; later answers must agree. Shared by all who read it."""

    location: Location
    etag: str | None = None  # None until the first answer, or where the store has none
    nbytes: int = -1  # -1 until the first answer


class Pending:
    """Bytes that were asked for: those from `start` to `end` of an object, or all of it. Thread-safe.

    Whoever wants the bytes holds on to it: one that nobody holds is not fetched any more.
    """

    __slots__ = (
        "__weakref__", "_data", "_done", "_error", "_lock", "attempts", "end", "is_hedged", "is_urgent", "object", "start",
        "started_s", "task", "timeout_s",
    )  # fmt: skip

    def __init__(
        self,
        target: RemoteObject,
        start: int = 0,
        end: int | None = None,
        *,
        is_urgent: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        self.object = target
        self.start = start
        self.end = end  # exclusive; None: the whole object
        self.is_urgent = is_urgent  # somebody waits for it already
        self.timeout_s = timeout_s  # without success, after which it has failed; None: as others
        self.started_s = 0.0  # of the attempt under way
        self.attempts = 0
        self.is_hedged = False
        self.task: asyncio.Task[None] | None = None
        self._data = b""
        self._error: BaseException | None = None
        self._done = False
        self._lock = threading.Lock()
        self._lock.acquire()

    @property
    def nbytes(self) -> int:
        """How many bytes were asked for; 0 where nobody knows."""
        return 0 if self.end is None else self.end - self.start

    @property
    def is_done(self) -> bool:
        return self._done

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def finish(self, data: bytes) -> None:
        """Hand the bytes to whoever waits; only the first to finish or fail counts."""
        if not self._done:
            self._data, self._done = data, True
            self._lock.release()

    def fail(self, error: BaseException) -> None:
        """Raise the error in whoever waits."""
        if not self._done:
            self._error, self._done = error, True
            self._lock.release()

    def wait(self) -> bytes:
        """Return the bytes when they are there. Raises what the request came to."""
        if not self._done:
            with waiting():
                while not self._done:
                    if self._lock.acquire(timeout=_LOOK_S):
                        self._lock.release()  # for others who wait
        if self._error is not None:
            raise self._error
        return self._data
