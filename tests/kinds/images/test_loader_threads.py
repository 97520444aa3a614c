"""Decode threads: started, initialised, counted, timed out, and gone."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures import NUM_SAMPLES
from recipes import CROP, make, own_threads

import datapipe as dp
from datapipe.kernel.options import default_num_workers
from datapipe.kernel.threads import LoaderThreads

pytestmark = pytest.mark.usefixtures("backend")


def test_worker_init_fn_runs_in_each_thread(folder: Path) -> None:
    seen: list[tuple[int, str]] = []
    loader = make(folder, num_workers=3, worker_init_fn=lambda number: seen.append((number, threading.current_thread().name)))
    assert seen == []
    list(loader)
    assert sorted(seen) == [(number, f"datapipe-{number}") for number in range(3)]
    list(loader)
    assert Counter(number for number, _ in seen) == {0: 2, 1: 2, 2: 2}


def test_an_error_in_worker_init_fn_arrives_and_leaves_nothing(folder: Path) -> None:
    def init(number: int) -> None:
        if number == 1:
            raise RuntimeError("no such device")

    iterator = iter(make(folder, num_workers=3, worker_init_fn=init))
    with pytest.raises(RuntimeError, match="no such device"):
        next(iterator)
    assert next(iterator, None) is None
    assert own_threads() == []


def wait_until_no_thread_is_left() -> None:
    deadline = time.monotonic() + 10
    while own_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert own_threads() == []


def test_ctrl_c_while_threads_start_leaves_nothing(folder: Path) -> None:
    interrupts = iter([True])

    def init(number: int) -> None:
        if number == 0 and next(interrupts, False):
            _thread.interrupt_main()
        time.sleep(0.3)

    loader = make(folder, num_workers=2, worker_init_fn=init, output="dict")
    before = torch.get_num_threads()
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert torch.get_num_threads() == before
    wait_until_no_thread_is_left()
    assert loader.state_dict()["epoch"] == 0
    assert len(list(iterator)) == len(loader)  # the interrupt took nothing from the pass


def test_ctrl_c_right_after_threads_started_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, interrupts = LoaderThreads.start, iter([KeyboardInterrupt])

    def interrupted(self: LoaderThreads) -> None:
        start(self)
        for interrupt in interrupts:
            raise interrupt

    monkeypatch.setattr(LoaderThreads, "start", interrupted)
    loader = make(folder, num_workers=2)
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    wait_until_no_thread_is_left()
    assert len(list(iterator)) == len(loader)


@pytest.mark.parametrize("end", ["close", "drop"])
def test_ctrl_c_while_threads_are_waited_for_is_heard(folder: Path, end: str) -> None:
    """Also where the iterator was dropped: Python ignores what is raised in a finaliser."""
    is_waiting, is_transforming = threading.Event(), threading.Event()

    def transform(batch: Any) -> int:
        _, labels = batch
        if labels[0]:  # of the second batch, which threads may well come to first
            is_transforming.set()
            is_waiting.wait(30)
            time.sleep(0.1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.1)
        return len(labels)

    def end_pass(iterators: list[dp.BatchIterator]) -> None:
        is_waiting.set()
        if end == "close":
            iterators[0].close()
        iterators.clear()
        time.sleep(10)

    labels = dp.DataLoader(folder).dataset.targets
    batches = [[labels.index(0)], [labels.index(1)]]
    iterators = [iter(dp.DataLoader(folder, batch_sampler=batches, transform=CROP, num_workers=1, batch_transform=transform))]
    next(iterators[0])
    assert is_transforming.wait(30), "the thread may not have come to the second batch yet"
    with pytest.raises(KeyboardInterrupt):
        end_pass(iterators)
    wait_until_no_thread_is_left()


def test_without_threads_work_is_done_by_the_caller(folder: Path) -> None:
    """For debuggers: a breakpoint in collate_fn stops in the main thread."""
    seen: set[str] = set()
    loader = make(folder, num_workers=0, collate_fn=lambda _: seen.add(threading.current_thread().name))
    before = threading.active_count()
    for _ in loader:
        assert threading.active_count() == before
    assert seen == {threading.current_thread().name}


def test_the_callers_work_is_single_threaded_and_leaves_the_setting(folder: Path) -> None:
    """As in decode threads: where torch's pool has more threads than the process has cores, it would crawl."""
    seen: list[int] = []

    def note(batch: Any) -> Any:
        seen.append(torch.get_num_threads())
        return batch

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        list(make(folder, num_workers=0, batch_transform=note))
        assert set(seen) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_timeout_raises_in_time(folder: Path) -> None:
    release = threading.Event()

    def slow(batch: Any) -> int:
        release.wait(20)
        return len(batch[1])

    iterator = iter(make(folder, timeout=0.2, batch_transform=slow))
    started = time.monotonic()
    try:
        with pytest.raises(dp.LifecycleError, match=r"no batch within timeout=0\.2 s \(step 0\)"):
            next(iterator)
        assert time.monotonic() - started < 5, "it must not wait for the thread that hangs"
    finally:
        release.set()
    assert next(iterator, None) is None
    deadline = time.monotonic() + 10
    while own_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert own_threads() == []


def test_timeout_counts_one_batch_not_the_pass(folder: Path) -> None:
    def slow(batch: Any) -> int:
        time.sleep(0.03)
        return len(batch[1])

    assert sum(make(folder, timeout=5, batch_transform=slow, num_workers=1)) == NUM_SAMPLES


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, None), ({"SLURM_CPUS_PER_TASK": "1"}, 1), ({"LOCAL_WORLD_SIZE": "1000"}, 1), ({"SLURM_CPUS_PER_TASK": "nonsense"}, None),
])  # fmt: skip
def test_default_number_of_threads(
    environment: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert 1 <= default_num_workers() <= len(os.sched_getaffinity(0))
    if expected is not None:
        assert default_num_workers() == expected
    assert make(folder, num_workers=None).num_workers == default_num_workers()
