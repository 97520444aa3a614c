"""The requests of a process: one thread with an event loop makes all of them, with one layer of retries.

An attempt that fails for a transient reason is repeated after a random pause. If one takes much longer than usual, a second
attempt runs in parallel, and the first to succeed counts.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from datapipe.errors import DatapipeError, LifecycleError, StorageError
from datapipe.stores.failures import (
    TIMEOUT_S,
    Cause,
    ChangedError,
    Failure,
    ShortBodyError,
    TooLargeError,
    WholeObjectError,
    examine,
    given_up,
    told,
)
from datapipe.stores.location import BUCKET_SCHEMES
from datapipe.stores.opening import reach
from datapipe.stores.patience import Patience
from datapipe.stores.pending import PendingBytes, RemoteObject
from datapipe.stores.reachability import note_reached
from datapipe.stores.redirects import with_target
from datapipe.stores.settings import Remote
from datapipe.stores.window import MAX_NBYTES, RequestWindow

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult

_TICK_S = 0.25
_LOOK_S = 5.0  # for what an error tells besides
MAX_WHOLE_NBYTES = 1 << 30  # of an object that is read as a whole: a manifest, an index

T = TypeVar("T")


class Requests:
    """Makes requests in a thread of its own. Thread-safe. Does not survive a fork."""

    def __init__(self) -> None:
        self.window = RequestWindow()
        self.timeout_s = TIMEOUT_S
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._queue: deque[weakref.ref[PendingBytes]] = deque()
        self._under_way: set[PendingBytes] = set()
        self._nbytes = 0  # requested and not received
        self._is_ticking = False
        self._hedges: set[asyncio.Task[None]] = set()  # asyncio keeps no reference of its own
        self._thread = threading.Thread(target=self._run, name="datapipe-requests", daemon=True)
        self._thread.start()

    @property
    def num_under_way(self) -> int:
        """The number of requests in progress."""
        return len(self._under_way)

    @property
    def nbytes_under_way(self) -> int:
        """How many bytes were asked for at this moment, and are not there yet."""
        return self._nbytes

    def set_limits(self, *, most: int, timeout_s: float) -> None:
        """Set the most requests in progress at once, and the time after which one fails; the latest settings apply to all."""
        self.window.allow(most)
        self.timeout_s = timeout_s

    def submit(self, wanted: Iterable[PendingBytes]) -> None:
        """Make these requests, in this order, as capacity allows; returns at once."""
        self.check_process()
        references = [weakref.ref(pending) for pending in wanted]
        if references:
            self._loop.call_soon_threadsafe(self._enqueue, references)

    def hasten(self, pending: PendingBytes) -> None:
        """Make this request now if it is still queued: a thread waits for it."""
        self.check_process()
        if not pending.is_done and not pending.started_s:
            self._loop.call_soon_threadsafe(self._start, pending)

    def call(self, make: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        """Return what a coroutine of the store's library returns, awaited in the thread of the requests.

        Raises TimeoutError after `timeout_s`, however little by little the store answers, and what the coroutine raises.
        """
        self.check_process()

        async def awaited() -> T:
            async with asyncio.timeout(timeout_s):
                return await make()

        future = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check_process(self) -> None:
        """Raise LifecycleError in a child that was forked after the first use, where the library's threads do not exist."""
        if os.getpid() != self._process:
            raise LifecycleError(
                "an object store was used in this process before it forked, and cannot be used in the child; "
                "start processes by 'spawn': multiprocessing.get_context('spawn')"
            )

    def stop(self) -> None:
        """End the thread; requests in progress are abandoned."""
        if os.getpid() != self._process or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    # -- in the event thread ----------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        for pending in list(self._under_way):
            pending.fail(LifecycleError("the process ends"))

    def _enqueue(self, references: list[weakref.ref[PendingBytes]]) -> None:
        self._queue.extend(references)
        self._fill()

    def _fill(self) -> None:
        """Start as many requests as capacity allows."""
        while self._queue and len(self._under_way) < self.window.limit and self._nbytes < MAX_NBYTES:
            pending = self._queue.popleft()()
            if pending is not None:
                self._start(pending)

    def _start(self, pending: PendingBytes) -> None:
        if pending.started_s or pending.is_done:
            return
        pending.started_s = time.monotonic()
        self._under_way.add(pending)
        self._nbytes += pending.nbytes
        pending.task = self._loop.create_task(self._see_through(pending))
        if not self._is_ticking:
            self._is_ticking = True
            self._loop.call_later(_TICK_S, self._tick)

    async def _see_through(self, pending: PendingBytes) -> None:
        """Repeat the request until it succeeds, fails for good, or the time is over."""
        timeout_s = self.timeout_s if pending.timeout_s is None else pending.timeout_s
        patience, last = Patience(pending.object.location, timeout_s), None
        try:
            while not pending.is_done:
                try:
                    async with asyncio.timeout(patience.left_s):
                        data = await self._attempt(pending)
                except asyncio.CancelledError:
                    raise
                except DatapipeError as exc:  # no client could be opened: what is installed, or set, does not fit
                    pending.fail(exc)
                    return
                except BaseException as exc:
                    failure = last = told(examine(exc, pending.object.location), last)
                    if failure.kind is Cause.THROTTLED and not failure.wait_s:
                        self.window.throttled()
                    pause = patience.pause_s(failure)
                    if pause is None:
                        pending.fail(await self._error(failure, pending, time.monotonic() - patience.since_s, timeout_s))
                        return
                    pending.trouble = failure.what
                    await asyncio.sleep(pause)
                    pending.attempts += 1
                    pending.started_s = time.monotonic()
                else:
                    note_reached(pending.object.location)
                    self.window.done(time.monotonic() - pending.started_s)
                    pending.finish(data)
        except asyncio.CancelledError:
            if not pending.is_done:
                pending.fail(LifecycleError("the process ends"))
        finally:
            pending.task = None
            self._under_way.discard(pending)
            self._nbytes -= pending.nbytes
            self._fill()

    async def _attempt(self, pending: PendingBytes) -> bytes:
        """Return the requested bytes; the object must be the one of the first response.

        Bytes that the reader will compare with a checksum are asked for in one step, without comparing the etag: that takes 150
        of 400 us of CPU off a request. Should they differ, the reader asks again, for bytes of that etag.
        """
        target = pending.object
        store, key = await reach(target.location)
        is_own = target.location.scheme in BUCKET_SCHEMES  # whose server the settings name; its answers fit
        if is_own and pending.has_checksum and pending.end is not None and target.nbytes >= 0:
            data = bytes(await store.get_range_async(key, start=pending.start, end=pending.end))
            return _checked(data, pending.nbytes, target.nbytes)
        options: GetOptions = {}
        if pending.end is not None:
            options["range"] = (pending.start, pending.end)
        has_etags = target.location.has_etags
        if has_etags and target.etag is not None and not target.etag.startswith("W/"):
            options["if_match"] = target.etag
        result = await store.get_async(key, options=options)
        meta = result.meta
        if pending.end is None and meta["size"] > MAX_WHOLE_NBYTES:  # the library allocates what the answer claims
            raise TooLargeError(f"{meta['size']} bytes")
        data = await _body(result, meta["size"] if pending.end is None else pending.nbytes)
        if target.nbytes < 0:
            target.etag, target.nbytes = meta["e_tag"], meta["size"]
        elif target.nbytes != meta["size"] or (has_etags and target.etag != meta["e_tag"]):  # for servers that ignore If-Match
            raise ChangedError
        return _checked(data, meta["size"] if pending.end is None else pending.nbytes, meta["size"])

    async def _error(self, failure: Failure, pending: PendingBytes, elapsed_s: float, timeout_s: float) -> BaseException:
        location = pending.object.location
        if failure.kind is Cause.CHANGED and pending.object.etag is not None:
            now = await self._etag_now(pending.object)
            change = f"etag {pending.object.etag} -> {now or 'gone'}"
            return StorageError(errno.ESTALE, f"{location}: changed since the loader opened it ({change}); open it again")
        failure = await with_target(failure, location)
        return given_up(failure, location, elapsed_s=elapsed_s, attempts=pending.attempts + 1, timeout_s=timeout_s)

    async def _etag_now(self, target: RemoteObject) -> str | None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_LOOK_S):
                store, key = await reach(target.location)
                meta = await store.head_async(key)
            return None if meta["e_tag"] is None else str(meta["e_tag"])
        return None

    def _tick(self) -> None:
        now_s = time.monotonic()
        self.window.tick(now_s)
        self._fill()
        for pending in list(self._under_way):
            if not pending.is_hedged and now_s - pending.started_s > self.window.hedge_after_s:
                pending.is_hedged = True
                task = self._loop.create_task(self._hedge(pending))
                self._hedges.add(task)
                task.add_done_callback(self._hedges.discard)
        self._is_ticking = bool(self._under_way)
        if self._is_ticking:
            self._loop.call_later(_TICK_S, self._tick)

    async def _hedge(self, pending: PendingBytes) -> None:
        """Make a second attempt parallel to the slow one; if it fails, the first continues."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(self.timeout_s):
                data = await self._attempt(pending)
            pending.finish(data)
            if pending.task is not None:
                pending.task.cancel()


async def _body(result: GetResult, most: int) -> bytes:
    """Return the body of an answer. Raises WholeObjectError for one that is longer than `most`, and reads no more of it."""
    pieces, held = [], 0
    async for piece in result.stream(min_chunk_size=most + 1):
        pieces.append(piece)
        held += len(piece)
        if held > most:
            raise WholeObjectError(f"more than {most} bytes")
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(map(bytes, pieces))


def _checked(data: bytes, wanted: int, object_nbytes: int) -> bytes:
    """Return the body if it has as many bytes as wanted. Raises WholeObjectError or ShortBodyError."""
    if len(data) != wanted:
        raise (WholeObjectError if len(data) == object_nbytes else ShortBodyError)(f"{len(data)} of {wanted} bytes")
    return data


_shared: Requests | None = None
_lock = threading.Lock()


def apply_settings(settings: Remote) -> None:
    """Let these settings hold for all requests of this process from now on, until others are applied."""
    requests().set_limits(most=settings.requests, timeout_s=settings.timeout_s)


def requests() -> Requests:
    """Return the process's shared object. Raises LifecycleError in a child forked after the first use."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = Requests()
            atexit.register(_shared.stop)
    _shared.check_process()
    return _shared
