"""Iterate over one epoch: batches in order, made ahead by threads."""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from datapipe.core.observe import Stage
from datapipe.errors import LifecycleError
from datapipe.kernel.device import DeviceTransfer
from datapipe.kernel.guarding import OneThread, ending
from datapipe.kernel.kind import Step, note_stage
from datapipe.kernel.passes import Passes
from datapipe.kernel.tasks import BatchTask, OpenPass
from datapipe.kernel.threads import LoaderThreads, run_here
from datapipe.order.plan import Cursor


class BatchIterator(Iterator[Any]):
    """The batches of one pass, in order.

    Nothing happens before the first `next()`: then the pass claims its epoch and starts its threads. They
    end with the last batch, with `close()`, or when the iterator is dropped. A batch that fails raises, counts as done, and
    the next `next()` continues after it; an error of the whole pass (`worker_init_fn`, the sampler, `timeout`) ends it. Do
    not share it between threads or use it in a forked child: both raise LifecycleError.
    """

    def __init__(self, passes: Passes, worker_init_fn: Callable[[int], None] | None) -> None:
        self._passes, self._epochs, self._worker_init_fn = passes, passes.progress.epochs, worker_init_fn
        self._opened: OpenPass | None = None
        self._tasks: deque[BatchTask] = deque()
        self._steps: Iterator[Step] | None = None
        self._asked = Cursor()  # after the last batch among the tasks
        self._sampler_error: Exception | None = None  # raised once the batches before it are delivered
        self._threads: LoaderThreads | None = None
        self._process = os.getpid()
        self._one_thread = OneThread()
        self._epoch = 0  # set when the pass begins
        self._is_closed = False

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        if self._process != os.getpid():
            raise LifecycleError(
                "this iterator was made in another process and its threads did not survive the fork; "
                "make a new one here with iter(loader)"
            )
        with self._one_thread:
            return self._next()

    def _next(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            opened = self._begin() if self._opened is None else self._opened
            self._top_up(opened)
            start_ns = time.perf_counter_ns()
            if self._tasks:
                self._wait(self._tasks[0], opened)
                self._tasks[0].finish_here()
        except Exception:
            self.close()
            raise
        if not self._tasks:
            self.close()  # outside of the handler above, so that Ctrl-C here does not chain to the end of the pass
            try:
                if self._sampler_error is not None:
                    raise self._sampler_error
            finally:
                self._sampler_error = None  # its traceback refers to this iterator
            self._epochs.end(self._epoch)
            raise StopIteration
        task = self._tasks.popleft()
        self._epochs.last = task.step.after
        batch = task.take()
        if isinstance(batch, DeviceTransfer):
            batch = batch.hand_over()
        self._top_up(opened)
        note_stage(opened.settings.observer, Stage.WAIT, task.step.step, start_ns, len(task.step))
        return batch

    def __len__(self) -> int:
        """Return the steps of a whole epoch, whatever is left of this one."""
        return self._passes.num_steps()

    def __reduce__(self) -> NoReturn:
        raise LifecycleError(
            "an iterator over a datapipe.DataLoader cannot be copied or pickled, as it holds threads and batches in the making; "
            "copy the loader itself, or take its state_dict() and load it into a copy, which then continues from that place"
        )

    def close(self) -> None:
        """End the pass: stop threads, drop batches in the making, release what the device has finished with.

        May be called again.
        """
        self._is_closed = True
        self._tasks.clear()
        if self._threads is not None:
            self._threads.stop()
        runtime = None if self._opened is None else self._opened.maker.resources.runtime
        if runtime is not None and self._process == os.getpid():  # CUDA answers nothing in a forked child
            runtime.pending.reap()

    def _begin(self) -> OpenPass:
        opened = self._passes.begin()
        if opened.maker.resources.options.num_threads:
            self._threads = LoaderThreads(opened.maker.resources, init=self._worker_init_fn)
            weakref.finalize(self, self._threads.stop_from_finalizer)
        try:
            if self._threads is not None:
                self._threads.start()
            start = self._epochs.claim()
            self._epoch, self._asked, self._steps = start.epoch, start, opened.settings.steps(start)
            self._opened = opened  # last: a beginning that Ctrl-C interrupted is repeated, with threads of its own
        except BaseException:
            if self._threads is not None:
                self._threads.work_queue.close()
            raise
        return opened

    def _top_up(self, opened: OpenPass) -> None:
        """Put as many batches in the making as the options say."""
        try:
            while not opened.maker.resources.options.is_ahead(len(task.step) for task in self._tasks):
                step = self._next_step()
                if step is None:
                    return
                task = BatchTask(opened, step)
                if self._threads is not None:
                    self._threads.work_queue.add(task)
                self._tasks.append(task)
                self._asked = step.after
        except BaseException:  # Ctrl-C: a generator that raised yields nothing more
            self._steps = opened.settings.steps(self._asked)
            raise

    def _next_step(self) -> Step | None:
        """Return the next step; None at the end of the pass, and if the sampler fails."""
        assert self._steps is not None
        try:
            return next(self._steps, None)
        except Exception as exc:
            self._sampler_error = exc
            return None

    def _wait(self, task: BatchTask, opened: OpenPass) -> None:
        """Wait until the batch that is due is made or has failed. Its task stays first, so that Ctrl-C loses no batch."""
        resources = opened.maker.resources
        if self._threads is None:
            run_here(task, resources)
            return
        timeout_s = resources.options.timeout_s
        with ending:
            is_done = task.done.wait(timeout_s or None)
        if not is_done:
            self._threads.abandon()
            raise LifecycleError(
                f"no batch within timeout={timeout_s} s (step {task.step.step}); is the storage responding? "
                "`datapipe bench` measures the loader alone"
            )
