"""The threads that load batches, and the board on which they find their work.

Threads know the board and the maker, never the iterator, so an iterator that is dropped is collected,
and its finaliser ends them. With no threads the consumer does the same work itself.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from datapipe.backends.images_cpu import BlockWorker
from datapipe.loader.batches import Batch, BatchMaker
from datapipe.plan import Picks


class BatchTask:
    """One batch on its way: prepared, its blocks loaded, finished, or failed."""

    def __init__(self, maker: BatchMaker, picks: Picks) -> None:
        self.picks = picks
        self.done = threading.Event()
        self._maker = maker
        self._batch: Batch | None = None
        self._num_left = 0
        self._result: Any = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def prepare(self) -> list[range]:
        """Look the batch up; the blocks to be loaded next."""
        try:
            self._batch = self._maker.prepare(self.picks)
            blocks = self._maker.blocks(self._batch)
            self._num_left = len(blocks)
            if not blocks:
                self._finish()
        except BaseException as exc:
            self._fail(exc)
            return []
        return blocks

    def load(self, rows: range, worker: BlockWorker) -> None:
        """Load one block; whoever loads the last one finishes the batch."""
        assert self._batch is not None
        try:
            if self._error is None:
                self._maker.load_block(self._batch, rows, worker)
            with self._lock:
                self._num_left -= 1
                is_last = self._num_left == 0
            if is_last and self._error is None:
                self._finish()
        except BaseException as exc:
            self._fail(exc)

    def take(self) -> Any:
        """The finished batch, once; raises what its making raised."""
        if self._error is not None:
            raise self._error
        result, self._result = self._result, None
        return result

    def _finish(self) -> None:
        assert self._batch is not None
        self._result = self._maker.finish(self._batch)
        self._batch = None  # from here on the user's references alone keep the slab
        self.done.set()

    def _fail(self, exc: BaseException) -> None:
        with self._lock:
            self._error = self._error or exc
        self.done.set()


class Board:
    """Work waiting for threads: batches to prepare come before blocks to load. Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._tasks: deque[BatchTask] = deque()
        self._blocks: deque[tuple[BatchTask, range]] = deque()
        self._is_closed = False

    def add(self, task: BatchTask) -> None:
        with self._condition:
            self._tasks.append(task)
            self._condition.notify()

    def close(self) -> None:
        """Let every thread end after the block it is at."""
        with self._condition:
            self._is_closed = True
            self._tasks.clear()
            self._blocks.clear()
            self._condition.notify_all()

    def work(self, worker: BlockWorker) -> None:
        """Do what there is to do until the board is closed."""
        while True:
            with self._condition:
                while not (self._tasks or self._blocks or self._is_closed):
                    self._condition.wait()
                if self._is_closed:
                    return
                task, rows = (self._tasks.popleft(), None) if self._tasks else self._blocks.popleft()
            if rows is not None:
                task.load(rows, worker)
                continue
            blocks = task.prepare()
            with self._condition:
                if not self._is_closed:
                    self._blocks.extend((task, rows) for rows in blocks)
                    self._condition.notify_all()


def run_here(task: BatchTask, maker: BatchMaker) -> None:
    """Make one batch in the calling thread, as a decode thread would: with torch's operators on one thread."""
    num_intraop = torch.get_num_threads()
    torch.set_num_threads(1)
    worker = maker.borrow_worker()
    try:
        for rows in task.prepare():
            task.load(rows, worker)
    finally:
        maker.return_worker(worker)
        torch.set_num_threads(num_intraop)


def start_threads(
    board: Board, maker: BatchMaker, *, num_threads: int, init: Callable[[int], None] | None
) -> list[threading.Thread]:
    """Start the decode threads; `init` is called in each with its number, as torch's worker_init_fn.

    Each thread runs torch's operators on one thread alone: pools of several would fight over the cores.
    That setting leaks to threads started later unless the thread reads it back before this one restores
    its own, hence the barrier. Raises what `init` raised.
    """
    ready = threading.Barrier(num_threads + 1)
    errors: list[BaseException] = []
    num_intraop = torch.get_num_threads()
    threads = [
        threading.Thread(target=_run, args=(board, maker, number, init, ready, errors), name=f"datapipe-{number}", daemon=True)
        for number in range(num_threads)
    ]
    try:
        for thread in threads:
            thread.start()
        ready.wait()
    except BaseException:  # Ctrl-C, or no more threads to be had: those that run must not wait for the others
        ready.abort()
        raise
    finally:
        torch.set_num_threads(num_intraop)
    if errors:
        stop_threads(board, threads, os.getpid())
        raise errors[0]
    return threads


def stop_threads(board: Board, threads: list[threading.Thread], process: int) -> None:
    """Close the board and wait for the threads to end, unless called by one of them (from a collection).

    `process`: the one the threads belong to. In a forked child there are none, and the board's lock may be held for ever.
    """
    if os.getpid() != process:
        return
    board.close()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


def _run(
    board: Board,
    maker: BatchMaker,
    number: int,
    init: Callable[[int], None] | None,
    ready: threading.Barrier,
    errors: list[BaseException],
) -> None:
    worker: BlockWorker | None = None
    torch.set_num_threads(1)
    torch.get_num_threads()
    try:
        if init is not None:
            init(number)
        worker = maker.borrow_worker()
    except BaseException as exc:
        errors.append(exc)
    try:
        ready.wait()
    except threading.BrokenBarrierError:  # the start was interrupted
        return
    if worker is not None:
        board.work(worker)
        maker.return_worker(worker)
