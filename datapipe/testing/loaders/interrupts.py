"""Ctrl-C wherever it comes: heard, once, and the pass goes on where it was."""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from datapipe.kernel.iteration import BatchIterator
from datapipe.kernel.threads import LoaderThreads
from datapipe.testing.loaders.kind import LoaderOf, Promises, copies, same, wait_until_no_thread_is_left


def interrupted(do: Callable[[], Any], at: int) -> tuple[str | None, Any]:
    """Raise KeyboardInterrupt at the `at`-th function that `do` enters; return the place, and the result if there is one.

    Python runs the handler of a signal where a function begins, among other places. A finished generator is not entered again,
    though a tracer sees it. The collector stays still: what raises in a callback of its own (hypothesis has one) is swallowed.
    """
    place, count = None, 0

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal place, count
        if frame.f_code.co_name == "<genexpr>":
            return
        count += 1
        if count == at:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            raise KeyboardInterrupt

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        result = do()
        return place, result
    finally:
        sys.settrace(before)
        gc.enable()


class InterruptSuite(Promises):
    """A user in a notebook stops a cell and goes on."""

    @pytest.mark.nightly
    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_ctrl_c_is_heard_wherever_it_comes_and_the_pass_goes_on(self, kind: LoaderOf, path: Path, num_workers: int) -> None:
        loader = kind.open(path, batch_size=3, shuffle=True, seed=0, num_workers=num_workers)
        expected = copies(loader)
        num_heard, at = 0, 0
        while True:
            at += 1
            loader.set_epoch(0)
            iterator = iter(loader)
            assert same(copies([next(iterator)]), expected[:1])
            try:
                place, batch = interrupted(lambda: next(iterator), at)  # noqa: B023
            except KeyboardInterrupt:
                num_heard += 1
                found = copies([next(iterator)])  # the interrupted batch, or the one after it if that was on its way out
                assert same(found, expected[1:2]) or same(found, expected[2:3])
            else:
                assert place is None, f"Ctrl-C is lost at {place}"
                assert same(copies([batch]), expected[1:2])
                break
        assert num_heard > 20

    def test_ctrl_c_while_threads_start_takes_nothing_from_the_pass(self, kind: LoaderOf, path: Path) -> None:
        interrupts = iter([True])

        def init(number: int) -> None:
            if number == 0 and next(interrupts, False):
                _thread.interrupt_main()
            time.sleep(0.3)

        loader = kind.open(path, batch_size=5, num_workers=2, worker_init_fn=init)
        before = torch.get_num_threads()
        iterator = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert torch.get_num_threads() == before
        wait_until_no_thread_is_left()
        assert loader.state_dict()["epoch"] == 0
        assert sum(1 for _ in iterator) == len(loader)

    def test_ctrl_c_right_after_threads_started_leaves_nothing(
        self, kind: LoaderOf, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start, interrupts = LoaderThreads.start, iter([KeyboardInterrupt])

        def interrupted_start(self: LoaderThreads) -> None:
            start(self)
            for interrupt in interrupts:
                raise interrupt

        monkeypatch.setattr(LoaderThreads, "start", interrupted_start)
        loader = kind.open(path, batch_size=5, num_workers=2)
        iterator = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        wait_until_no_thread_is_left()
        assert sum(1 for _ in iterator) == len(loader)

    @pytest.mark.parametrize("end", ["close", "drop"])
    def test_ctrl_c_while_threads_are_waited_for_is_heard(self, kind: LoaderOf, path: Path, end: str) -> None:
        """Also where the iterator was dropped: Python ignores what is raised in a finaliser."""
        is_waiting, is_transforming = threading.Event(), threading.Event()

        def transform(batch: Any) -> Any:
            if 1 in kind.ids(batch):  # the second batch, which threads may well come to first
                is_transforming.set()
                is_waiting.wait(30)
                time.sleep(0.1)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                time.sleep(0.1)
            return batch

        def end_pass(iterators: list[BatchIterator]) -> None:
            is_waiting.set()
            if end == "close":
                iterators[0].close()
            iterators.clear()
            time.sleep(10)

        iterators = [iter(kind.open(path, num_workers=1, batch_transform=transform))]
        next(iterators[0])
        assert is_transforming.wait(30), "the thread may not have come to the second batch yet"
        with pytest.raises(KeyboardInterrupt):
            end_pass(iterators)
        wait_until_no_thread_is_left()
