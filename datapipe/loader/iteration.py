"""One pass over an epoch."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from datapipe.backends.device import Arrival
from datapipe.checks import whole_number
from datapipe.errors import LifecycleError
from datapipe.loader.batches import BatchMaker
from datapipe.loader.sources import PickSource
from datapipe.loader.threads import BatchTask, LoaderThreads, run_here
from datapipe.observe import Stage, StageEvent
from datapipe.plan import Cursor, Picks


class Epochs:
    """Which epoch the next pass belongs to, and where in it to begin."""

    def __init__(self) -> None:
        self.last = Cursor()  # after the last batch handed out
        self._next = Cursor()
        self._is_at_end = False  # of its epoch, so that a pass begins with the following one
        self._lock = threading.Lock()

    def set_epoch(self, epoch: int) -> None:
        """The next pass is over `epoch`: from its beginning, or what a resumed state has left of it."""
        number = whole_number(epoch, "epoch", least=0)
        with self._lock:
            self._is_at_end = False
            if self._next.epoch != number:
                self._next = Cursor(number)

    def resume(self, cursor: Cursor, *, is_at_end: bool) -> None:
        """The next pass goes on from `cursor`; `is_at_end`: nothing is left of its epoch."""
        with self._lock:
            self.last = self._next = cursor
            self._is_at_end = is_at_end

    def claim(self) -> Cursor:
        """The place of a pass that begins now; the pass after it belongs to the epoch that follows."""
        with self._lock:
            claimed = Cursor(self._next.epoch + 1) if self._is_at_end else self._next
            self._next, self._is_at_end = Cursor(claimed.epoch + 1), False
            return claimed


@dataclass(frozen=True, slots=True)
class Pass:
    """What an iterator needs to begin."""

    open: Callable[[], tuple[BatchMaker, PickSource]]  # asked at the first `next()`, in the consumer's thread
    num_steps: Callable[[], int]  # of a whole epoch
    epochs: Epochs
    worker_init_fn: Callable[[int], None] | None


class BatchIterator(Iterator[Any]):
    """The batches of one pass, in order.

    Nothing happens before the first `next()`: then the pass claims its epoch and starts its threads. They
    end with the last batch, with `close()`, or when the iterator is dropped. Not to be shared between
    threads, nor used in a forked child.
    """

    def __init__(self, parts: Pass) -> None:
        self._parts = parts
        self._maker: BatchMaker | None = None
        self._tasks: deque[BatchTask] = deque()
        self._steps: Iterator[Picks] | None = None
        self._sampler_error: Exception | None = None  # raised once the batches before it are handed out
        self._threads: LoaderThreads | None = None
        self._process = os.getpid()
        self._is_closed = False

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        if self._process != os.getpid():
            raise LifecycleError(
                "this iterator was made in another process and its threads did not survive the fork; "
                "make a new one here with iter(loader)"
            )
        if self._is_closed:
            raise StopIteration
        try:
            maker = self._begin() if self._maker is None else self._maker
            self._top_up(maker)
            start_ns = time.perf_counter_ns()
            batch = self._first_batch(maker) if self._tasks else None
        except Exception:
            self.close()
            raise
        if not self._tasks:
            self.close()  # outside of the handler above: Ctrl-C in here is no consequence of the pass's end
            raise self._sampler_error or StopIteration
        task = self._tasks.popleft()
        self._top_up(maker)
        self._parts.epochs.last = task.picks.after
        waited_ns = time.perf_counter_ns() - start_ns
        maker.observer(StageEvent(Stage.WAIT, task.picks.step, start_ns, waited_ns, len(task.picks.positions)))
        return batch

    def __len__(self) -> int:
        """Steps of a whole epoch, whatever is left of this one."""
        return self._parts.num_steps()

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            "an iterator over a datapipe.DataLoader cannot be copied or pickled, as it holds threads and batches in the making; "
            "copy the loader itself, or take its state_dict() and load it into a copy, which then goes on from that place"
        )

    def close(self) -> None:
        """End the pass: threads stop, batches in the making are dropped. May be called again."""
        self._is_closed = True
        self._tasks.clear()
        if self._threads is not None:
            self._threads.stop()

    def _begin(self) -> BatchMaker:
        parts = self._parts
        maker, source = parts.open()
        if maker.options.num_workers:
            self._threads = LoaderThreads(maker, init=parts.worker_init_fn)
            weakref.finalize(self, self._threads.stop_unheard)
            self._threads.start()
        self._steps = source.steps(parts.epochs.claim())
        self._maker = maker  # last: what Ctrl-C leaves unfinished is begun anew
        return maker

    def _top_up(self, maker: BatchMaker) -> None:
        """Have as many batches in the making as the options say."""
        assert self._steps is not None
        while not maker.options.is_ahead(len(task.picks.positions) for task in self._tasks):
            try:
                picks = next(self._steps, None)
            except Exception as exc:
                self._sampler_error, picks = exc, None
            if picks is None:
                return
            task = BatchTask(maker, picks)
            self._tasks.append(task)
            if self._threads is not None:
                self._threads.board.add(task)

    def _first_batch(self, maker: BatchMaker) -> Any:
        """The batch that is due, once it is made. Its task stays where it is: an interrupted wait may be taken up again."""
        task = self._tasks[0]
        self._wait(task, maker)
        batch = task.take()
        return batch.hand_over() if isinstance(batch, Arrival) else batch

    def _wait(self, task: BatchTask, maker: BatchMaker) -> None:
        if self._threads is None:
            run_here(task, maker)
        elif not task.done.wait(maker.options.timeout_s or None):
            self._threads.abandon()
            raise LifecycleError(
                f"no batch within timeout={maker.options.timeout_s} s (step {task.picks.step}); is the storage responding? "
                "`datapipe bench` measures the loader alone"
            )
