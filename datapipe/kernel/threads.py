"""Run the threads that make batches, and queue their work.

Threads refer to the queue, the maker and its resources, never the iterator, so an iterator that is dropped is collected,
and its finaliser ends them. With no threads the consumer does the same work itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from datapipe.kernel.kind import Piece, Resources
from datapipe.kernel.tasks import BatchTask

_JOIN_S = 10.0  # a thread whose storage does not respond ends when its read does
_COLLECTION_S = 0.01  # time for a garbage collection to end


class WorkQueue:
    """Work for threads. Batches to begin come first, then pieces to fill, then spare work for later batches.

    Batches to decode wait for the lanes. Thread-safe; the consumer's `add` and `close` may be interrupted anywhere
    and called again.
    """

    def __init__(self) -> None:
        # Acquired directly in the consumer's thread, not through a Condition: Ctrl-C in `Condition.__exit__` leaves it held.
        self._lock = threading.RLock()  # reentrant: a garbage collection while it is held may call `close`
        self._filling, self._decoding = threading.Condition(self._lock), threading.Condition(self._lock)
        self._tasks: deque[BatchTask] = deque()
        self._pieces: deque[tuple[BatchTask, Piece]] = deque()
        self._filled: deque[BatchTask] = deque()
        self._spare: deque[Callable[[Any], object]] = deque()
        self._is_closed = False

    def add(self, task: BatchTask) -> None:
        """Queue a batch to be begun."""
        with self._lock:
            self._tasks.append(task)
            self._filling.notify()

    def close(self) -> None:
        """Let every thread end after its present work."""
        with self._lock:
            self._is_closed = True
            self._tasks.clear()
            self._pieces.clear()
            self._filled.clear()
            self._spare.clear()
            self._filling.notify_all()
            self._decoding.notify_all()

    def fill(self, worker: Any) -> None:
        """Begin batches and fill pieces until the queue is closed."""
        while True:
            with self._filling:
                while not (self._tasks or self._pieces or self._spare or self._is_closed):
                    self._filling.wait()
                if self._is_closed:
                    return
                spare = None if self._tasks or self._pieces else self._spare.popleft()
                if spare is None:
                    task, piece = (self._tasks.popleft(), None) if self._tasks else self._pieces.popleft()
            if spare is not None:
                spare(worker)
                continue
            if piece is not None:
                if task.fill(piece, worker, partial(self._fill_next, task, piece)):
                    with self._decoding:
                        self._filled.append(task)
                        self._decoding.notify()
                continue
            pieces = task.begin()
            with self._filling:
                if not self._is_closed:
                    self._pieces.extend((task, piece) for piece in pieces)
                    self._spare.extend(task.spare)
                    self._filling.notify_all()

    def _fill_next(self, task: BatchTask, piece: Piece) -> None:
        """Queue a piece again, before all others."""
        with self._filling:
            if not self._is_closed:
                self._pieces.appendleft((task, piece))
                self._filling.notify()

    def decode(self, lane: Any, worker: Any) -> None:
        """Decode filled batches by a lane until the queue is closed."""
        while True:
            with self._decoding:
                while not (self._filled or self._is_closed):
                    self._decoding.wait()
                if self._is_closed:
                    return
                task = self._filled.popleft()
            task.decode(lane, worker)


def run_here(task: BatchTask, resources: Resources) -> None:
    """Make one batch in the calling thread, as filling threads would: with torch's operators on one thread.

    Ctrl-C in the middle raises here; the task may then be run again.
    """
    num_intraop = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        worker = resources.workers.borrow()
        for piece in task.begin():
            if task.fill(piece, worker, _alone):
                _decode(resources, worker, task.decode)
        resources.workers.give_back(worker)
    finally:
        torch.set_num_threads(num_intraop)
    task.raise_interrupt()
    assert task.done.wait(0), "another thread loads what this one needs, though there is none"


def _alone() -> None:
    """Nobody waits for what another thread loads."""


# Threads that were joined. When a Thread is freed, `threading` runs Python code; a Ctrl-C that is raised there is swallowed. The
# next loader thread frees them, as Ctrl-C is raised in the main thread only.
_ended: deque[threading.Thread] = deque()


# Threads of passes that were collected in a thread that must not wait for them.
_left: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        if thread.is_alive():
            thread.join(_JOIN_S)


@atexit.register
def _join_those_left() -> None:
    """Wait for the threads in `_left`: an interpreter that ends while a thread is in C++ code aborts."""
    _join(list(_left))


class LoaderThreads:
    """The threads of one pass and their `work_queue`: those that fill, and one for each lane.

    `init` is called in each filling thread of this machine's with its number, as torch's worker_init_fn. Each thread runs torch's
    operators on one thread only: several thread pools would compete for the cores.
    """

    def __init__(self, resources: Resources, *, init: Callable[[int], None] | None) -> None:
        work_queue = self.work_queue = WorkQueue()
        self._resources = resources
        self._process = os.getpid()
        self._starter = threading.current_thread()
        self._errors: list[BaseException] = []
        num_filling = resources.options.num_threads
        remote = range(resources.options.num_workers, num_filling)
        num_lanes = resources.lanes.num if resources.lanes is not None else 0
        self._ready = threading.Barrier(num_filling + num_lanes + 1)
        self._threads = [
            self._thread(
                f"datapipe-{number}", work_queue.fill, None if number in remote or init is None else partial(init, number)
            )
            for number in range(num_filling)
        ]
        self._threads += [
            self._thread(f"datapipe-lane-{number}", lambda worker: _decode(resources, worker, work_queue.decode), None)
            for number in range(num_lanes)
        ]

    def start(self) -> None:
        """Start all threads. Raises what `init` raised; then, as at any time, `stop` ends the others.

        torch's number of threads leaks to threads that are started later unless the new thread reads it back before
        this one restores its own, hence the barrier.
        """
        num_intraop = torch.get_num_threads()
        try:
            for thread in self._threads:
                thread.start()
            self._ready.wait()
        except BaseException:  # Ctrl-C, or no further thread can be started: those that run must not wait for the others
            self._ready.abort()
            raise
        finally:
            torch.set_num_threads(num_intraop)
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        """Close the queue and wait for the threads to end, unless one of them calls it.

        A garbage collection that finds a dropped iterator may call this in such a thread, and with any lock held; hence
        the time limit. In a forked child there are no threads, and the queue's lock may be held for ever.
        """
        if os.getpid() != self._process:
            return
        try:
            self.work_queue.close()
            self._join()
        except KeyboardInterrupt:
            self.work_queue.close()
            atexit.register(self._join)  # an interpreter that ends while a thread is in C++ code aborts
            raise

    def stop_from_finalizer(self) -> None:
        """Call `stop` from a garbage collection, which swallows exceptions. Ctrl-C is sent again right after.

        A collection may run in any thread, such as the one that makes the requests that these threads wait for. Only the thread
        that iterated, and the main thread, wait for them to end; in others they are left to end by themselves.
        """
        here = threading.current_thread()
        if here is not self._starter and here is not threading.main_thread():
            if os.getpid() == self._process:
                self.work_queue.close()
                _left.update(self._threads)
            return
        try:
            self.stop()
        except KeyboardInterrupt:
            main = threading.main_thread().ident or 0
            again = threading.Timer(_COLLECTION_S, signal.pthread_kill, (main, signal.SIGINT))
            again.daemon = True
            again.start()

    def abandon(self) -> None:
        """Close the queue without waiting: a thread hangs, and ends when its read does."""
        self.work_queue.close()
        self._threads.clear()

    def _join(self) -> None:
        if threading.current_thread() not in self._threads:
            _join(self._threads)
            _ended.extend(self._threads)
            self._threads.clear()

    def _thread(self, name: str, serve: Callable[[Any], None], begin: Callable[[], None] | None) -> threading.Thread:
        return threading.Thread(target=self._run, args=(serve, begin), name=name, daemon=True)

    def _run(self, serve: Callable[[Any], None], begin: Callable[[], None] | None) -> None:
        if self._ready.broken:  # the start was interrupted, and nothing waits for this thread
            return
        _ended.clear()
        worker: Any = None
        torch.set_num_threads(1)
        torch.get_num_threads()
        try:
            if self._resources.runtime is not None:
                self._resources.runtime.enter_thread()
            if begin is not None:
                begin()
            worker = self._resources.workers.borrow()
        except BaseException as exc:
            self._errors.append(exc)
        try:
            self._ready.wait()
        except threading.BrokenBarrierError:  # the start was interrupted
            return
        if worker is not None:
            serve(worker)
            self._resources.workers.give_back(worker)


def _decode(resources: Resources, worker: Any, serve: Callable[[Any, Any], None]) -> None:
    """Call `serve` with a lane and the worker."""
    assert resources.lanes is not None
    lane = resources.lanes.pool.borrow()
    serve(lane, worker)
    resources.lanes.pool.give_back(lane)
