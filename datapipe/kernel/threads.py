"""Run the threads that make batches, and queue their work.

Threads refer to the queue and the maker, never the iterator, so an iterator that is dropped is collected,
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

from datapipe.kernel.tasks import BatchMaker, BatchTask, Worker

_JOIN_S = 10.0  # a thread whose storage does not respond ends when its read does
_COLLECTION_S = 0.01  # time for a garbage collection to end


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

    def decode(self, pipeline: Any, worker: Worker) -> None:
        """Decode fetched batches until the queue is closed."""
        while True:
            with self._decoding:
                while not (self._fetched or self._is_closed):
                    self._decoding.wait()
                if self._is_closed:
                    return
                task = self._fetched.popleft()
            task.decode(pipeline, worker)


def run_here(task: BatchTask, maker: BatchMaker) -> None:
    """Make one batch in the calling thread, as loading threads would: with torch's operators on one thread.

    Ctrl-C in the middle raises here; the task may then be run again.
    """
    num_intraop = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        worker = maker.workers.borrow()
        for rows in task.prepare():
            if task.load(rows, worker):
                _decode(maker, worker, task.decode)
        maker.workers.give_back(worker)
    finally:
        torch.set_num_threads(num_intraop)
    task.raise_interrupt()


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
    """The threads of one pass and their `work_queue`: those that load, and those that decode if that is a stage of its own.

    `init` is called in each loading thread with its number, as torch's worker_init_fn. Each thread runs torch's
    operators on one thread only: several thread pools would compete for the cores.
    """

    def __init__(self, maker: BatchMaker, *, init: Callable[[int], None] | None) -> None:
        work_queue = self.work_queue = WorkQueue()
        self._maker = maker
        self._process = os.getpid()
        self._starter = threading.current_thread()
        self._errors: list[BaseException] = []
        num_loading = maker.options.num_workers
        num_decoding = maker.dali.num_pipelines if maker.dali is not None else 0
        self._ready = threading.Barrier(num_loading + num_decoding + 1)
        self._threads = [
            self._thread(f"datapipe-{number}", work_queue.load, None if init is None else partial(init, number))
            for number in range(num_loading)
        ]
        self._threads += [
            self._thread(f"datapipe-dali-{number}", lambda worker: _decode(maker, worker, work_queue.decode), None)
            for number in range(num_decoding)
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

    def _thread(self, name: str, serve: Callable[[Worker], None], begin: Callable[[], None] | None) -> threading.Thread:
        return threading.Thread(target=self._run, args=(serve, begin), name=name, daemon=True)

    def _run(self, serve: Callable[[Worker], None], begin: Callable[[], None] | None) -> None:
        if self._ready.broken:  # the start was interrupted, and nothing waits for this thread
            return
        _ended.clear()
        worker: Worker | None = None
        torch.set_num_threads(1)
        torch.get_num_threads()
        try:
            if self._maker.runtime is not None:
                self._maker.runtime.enter_thread()
            if begin is not None:
                begin()
            worker = self._maker.workers.borrow()
        except BaseException as exc:
            self._errors.append(exc)
        try:
            self._ready.wait()
        except threading.BrokenBarrierError:  # the start was interrupted
            return
        if worker is not None:
            serve(worker)
            self._maker.workers.give_back(worker)


def _decode(maker: BatchMaker, worker: Worker, serve: Callable[[Any, Worker], None]) -> None:
    """Call `serve` with a pipeline of DALI's and the worker."""
    pipeline = maker.dali.pipelines.borrow()
    serve(pipeline, worker)
    maker.dali.pipelines.give_back(pipeline)
