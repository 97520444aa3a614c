"""Queue the work of making batches: what threads take, and the tasks that they leave finished or failed."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from datapipe.backends.images_dali.pipeline import DaliPipeline
from datapipe.loader.batch_making import BatchMaker, BatchPicks
from datapipe.loader.images.dali import FetchWorker

Worker = Any  # what a maker's `workers` lends


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

    def decode(self, pipeline: DaliPipeline, worker: FetchWorker) -> None:
        """Decode the whole batch, and finish it."""
        assert self._batch is not None
        try:
            self._maker.decode(self._batch, pipeline, worker)
            self._finish()
            return
        except BaseException as exc:
            self._hold(exc)
        self.done.open()

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


class WorkQueue:
    """Work for threads. Batches to prepare come first, then blocks to load, then spare work for later batches.

    Batches to decode wait for threads of their own. Thread-safe; the consumer's `add` and `close` may be interrupted anywhere
    and called again.
    """

    def __init__(self) -> None:
        # Acquired directly in the consumer's thread, not through a Condition: Ctrl-C in `Condition.__exit__` leaves it held.
        self._lock = threading.RLock()  # reentrant: a garbage collection while it is held may call `close`
        self._loading, self._decoding = threading.Condition(self._lock), threading.Condition(self._lock)
        self._tasks: deque[BatchTask] = deque()
        self._blocks: deque[tuple[BatchTask, range]] = deque()
        self._fetched: deque[BatchTask] = deque()
        self._spare: deque[Callable[[Worker], object]] = deque()
        self._is_closed = False

    def add(self, task: BatchTask) -> None:
        """Queue a batch to be prepared."""
        with self._lock:
            self._tasks.append(task)
            self._loading.notify()

    def close(self) -> None:
        """Let every thread end after its present work."""
        with self._lock:
            self._is_closed = True
            self._tasks.clear()
            self._blocks.clear()
            self._fetched.clear()
            self._spare.clear()
            self._loading.notify_all()
            self._decoding.notify_all()

    def load(self, worker: Worker) -> None:
        """Prepare batches and load blocks until the queue is closed."""
        while True:
            with self._loading:
                while not (self._tasks or self._blocks or self._spare or self._is_closed):
                    self._loading.wait()
                if self._is_closed:
                    return
                spare = None if self._tasks or self._blocks else self._spare.popleft()
                if spare is None:
                    task, rows = (self._tasks.popleft(), None) if self._tasks else self._blocks.popleft()
            if spare is not None:
                spare(worker)
                continue
            if rows is not None:
                if task.load(rows, worker):
                    with self._decoding:
                        self._fetched.append(task)
                        self._decoding.notify()
                continue
            blocks = task.prepare()
            with self._loading:
                if not self._is_closed:
                    self._blocks.extend((task, rows) for rows in blocks)
                    self._spare.extend(task.spare)
                    self._loading.notify_all()

    def decode(self, pipeline: DaliPipeline, worker: FetchWorker) -> None:
        """Decode fetched batches until the queue is closed."""
        while True:
            with self._decoding:
                while not (self._fetched or self._is_closed):
                    self._decoding.wait()
                if self._is_closed:
                    return
                task = self._fetched.popleft()
            task.decode(pipeline, worker)
