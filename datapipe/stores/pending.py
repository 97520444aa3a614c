"""Requests in progress, as seen by the threads that wait for them, and how long each thread has waited."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from datapipe.errors import copied
from datapipe.stores.location import Location

if TYPE_CHECKING:
    import asyncio

_waits = threading.local()
_LOOK_S = 1.0  # Ctrl-C in a thread that has just acquired the lock may leave the others blocked, so they retry


@dataclass(slots=True)
class RemoteObject:
    """An object and what its first response said about it; later responses must agree. Shared by all its readers."""

    location: Location
    etag: str | None = None  # None until the first response, or if the store has none
    nbytes: int = -1  # -1 until the first response


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class PendingBytes:
    """A request for the bytes from `start` to `end` of an object, or for all of it. Thread-safe.

    The caller must keep a reference: a request without references is not made any more.
    """

    object: RemoteObject
    start: int = 0
    end: int | None = None  # exclusive; None: the whole object
    _: KW_ONLY
    is_urgent: bool = False  # a thread waits for it already
    has_checksum: bool = False  # the reader compares the bytes with one, so their etag need not be compared
    timeout_s: float | None = None  # without success, after which it has failed; None: the default
    started_s: float = field(default=0.0, init=False)  # of the current attempt
    attempts: int = field(default=0, init=False)
    trouble: str = field(default="", init=False)  # the failure of the last attempt, for users
    is_hedged: bool = field(default=False, init=False)
    task: asyncio.Task[None] | None = field(default=None, init=False)
    _data: bytes = field(default=b"", init=False)
    _error: BaseException | None = field(default=None, init=False)
    _done: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._lock.acquire()

    @property
    def nbytes(self) -> int:
        """The number of requested bytes; 0 if unknown."""
        return 0 if self.end is None else self.end - self.start

    @property
    def is_done(self) -> bool:
        return self._done

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def finish(self, data: bytes) -> None:
        """Deliver the bytes to the waiting threads; only the first call of `finish` or `fail` counts."""
        if not self._done:
            self._data, self._done = data, True
            self._lock.release()

    def fail(self, error: BaseException) -> None:
        """Raise the error in the waiting threads."""
        if not self._done:
            self._error, self._done = error, True
            self._lock.release()

    def wait(self) -> bytes:
        """Return the bytes once they have arrived. Raises the request's error."""
        if not self._done:
            with waiting():
                while not self._done:
                    if self._lock.acquire(timeout=_LOOK_S):
                        self._lock.release()  # for other waiting threads
        if self._error is not None:
            raise copied(self._error)
        return self._data


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Count the time within the block as the calling thread's waiting; blocks within one another count once."""
    if getattr(_waits, "is_waiting", False):
        yield
        return
    _waits.is_waiting = True
    start_ns = time.perf_counter_ns()
    try:
        yield
    finally:
        _waits.is_waiting = False
        _waits.ns = getattr(_waits, "ns", 0) + time.perf_counter_ns() - start_ns


def take_waited_ns() -> int:
    """Return how long the calling thread has waited since it asked last, in nanoseconds."""
    waited_ns: int = getattr(_waits, "ns", 0)
    _waits.ns = 0
    return waited_ns
