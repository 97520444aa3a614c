"""A batch in the making, of images or of a table: what makes it, and the task that threads work on and an iterator waits for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from datapipe.core.observe import Observer
from datapipe.kernel.accelerators import accelerator
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.pools import SlabPool
from datapipe.order.plan import BatchSpan, Cursor, Picks

T = TypeVar("T")
Worker = Any  # what a maker's `workers` lends

BatchPicks = Picks | BatchSpan  # one rank's batch, before it is made: samples, or a range of positions


Steps = Callable[[Cursor], Iterator[BatchPicks]]  # the batches of an epoch from a place in it on; runs in the consumer's thread


class ObjectPool(Generic[T]):
    """Lends objects that are costly to make, and serve one thread at a time.

    Thread-safe, without a lock: a garbage collection under one could wait for itself.
    """

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


def open_batch_pool(nbytes: int, *, options: LoaderOptions, runtime: DeviceRuntime | None) -> SlabPool:
    """Return a pool of memory for batches: page-locked if they go to a GPU, or if there is one and the user asks for it."""
    max_free = options.depth + 2
    if runtime is not None:
        return runtime.pinned_slabs(nbytes, max_free=max_free)
    return SlabPool(nbytes, max_free=max_free, pinned=options.pin_memory and accelerator() is not None)


class BatchMaker(Protocol):
    """Makes batches, block by block. Thread-safe."""

    @property
    def options(self) -> LoaderOptions: ...

    @property
    def observer(self) -> Observer: ...

    @property
    def workers(self) -> ObjectPool[Any]:
        """The pool of workers with which threads make blocks, one each."""

    @property
    def runtime(self) -> DeviceRuntime | None:
        """The device that batches go to; None if they stay in host memory."""

    @property
    def dali(self) -> Any:
        """The `DaliStage` that decodes whole batches between the last block and `finish`; None if there is none."""

    def prepare(self, picks: Any, /) -> Any:
        """Return a batch in the making."""

    def blocks(self, batch: Any, /) -> list[range]:
        """Return the rows of each of its blocks."""

    def spare(self, batch: Any, /) -> list[Callable[[Any], object]]:
        """Return work for later batches, each a function of a worker, for threads that have nothing else to do."""

    def load_block(self, batch: Any, rows: range, worker: Any, /) -> None: ...

    def decode(self, batch: Any, pipeline: Any, worker: Any, /) -> None: ...

    def finish(self, batch: Any, /) -> Any:
        """Return what the user gets, its arrival on a device, or `LeftToConsumer`."""


class Latch:
    """An event that one thread waits for and another opens, once.

    Ctrl-C in the middle of `threading.Event.wait` may leave the event's lock held, and then nothing can set it.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        self._is_open = True
        with contextlib.suppress(RuntimeError):  # already released
            self._closed.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether it was opened in time; None waits without a limit."""
        return self._is_open or self._closed.acquire(timeout=-1 if timeout_s is None else timeout_s)


@dataclass(frozen=True, slots=True)
class LeftToConsumer:
    """A batch whose last step may draw from the training's random state, and so runs in the consumer's thread, at `next()`."""

    finish: Callable[[], Any]  # may be interrupted, and called again


class BatchTask:
    """One batch in the making: prepared, its blocks loaded, decoded if that is a stage of its own, finished; or failed."""

    def __init__(self, maker: BatchMaker, picks: BatchPicks) -> None:
        self.picks = picks
        self.done = Latch()
        self._maker = maker
        self._batch: Any = None
        self._num_left = 0
        self.spare: list[Callable[[Worker], object]] = []  # work for later batches, once this one is prepared
        self._result: Any = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def prepare(self) -> list[range]:
        """Look the batch up. Returns the blocks to load next."""
        try:
            self._batch = self._maker.prepare(self.picks)
            blocks = self._maker.blocks(self._batch)
            self.spare = self._maker.spare(self._batch)
            self._num_left = len(blocks)
            if not blocks:
                self._finish()
            return blocks
        except BaseException as exc:
            self._hold(exc)
        self.done.open()
        return []

    def load(self, rows: range, worker: Worker) -> bool:
        """Load one block; the last one finishes the batch. Returns True if it is to be decoded next instead."""
        assert self._batch is not None
        try:
            if self._error is None:
                self._maker.load_block(self._batch, rows, worker)
            with self._lock:
                self._num_left -= 1
                is_last = self._num_left == 0
            if is_last and self._error is None:
                if self._maker.dali is not None:
                    return True
                self._finish()
            return False
        except BaseException as exc:
            self._hold(exc)
        self.done.open()
        return False

    def decode(self, pipeline: Any, worker: Worker) -> None:
        """Decode the whole batch, and finish it."""
        assert self._batch is not None
        try:
            self._maker.decode(self._batch, pipeline, worker)
            self._finish()
            return
        except BaseException as exc:
            self._hold(exc)
        self.done.open()

    def finish_here(self) -> None:
        """Do what is left to the consumer's thread, which calls this. May be interrupted, and called again."""
        if type(self._result) is LeftToConsumer:
            try:
                self._result = self._result.finish()
            except Exception as exc:
                self._result = None
                self._hold(exc)

    def take(self) -> Any:
        """Return the finished batch, once. Raises the error of its making."""
        self._raise_error()
        result, self._result = self._result, None
        return result

    def raise_interrupt(self) -> None:
        """Raise, and forget, what interrupted the making of the batch without being an error of the batch."""
        if not isinstance(self._error, Exception):
            self._raise_error()

    def _raise_error(self) -> None:
        """Raise the error, once, and forget it.

        Its traceback refers to the iterator: keeping it would make a cycle, and the threads of an iterator that is dropped would
        not end before a garbage collection. For the same reason no variable holds it.
        """
        try:
            if self._error is not None:
                raise self._error
        finally:
            self._error = None

    def _finish(self) -> None:
        assert self._batch is not None
        self._result = self._maker.finish(self._batch)
        self._batch = None  # from here on only the user's references keep the slab
        self.done.open()

    def _hold(self, exc: BaseException) -> None:
        """Keep the error for the consumer.

        `done` is opened once the thread has left its handler: one that still held the error would free the consumer's iterator,
        to which the traceback leads by then, after the consumer has dropped it.
        """
        with self._lock:
            self._error = self._error or exc
