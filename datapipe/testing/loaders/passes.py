"""Lengths, epochs and iterators, the threads of a pass, and what it leaves behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from datapipe.core.observe import Stage, StageEvent
from datapipe.errors import LifecycleError
from datapipe.kernel.loader import Loader
from datapipe.testing.loaders.kind import NUM_SAMPLES, LoaderOf, Promises, flat, own_threads, wait_until_no_thread_is_left

LENGTHS: list[tuple[dict[str, Any], int]] = [
    ({}, 8), ({"drop_last": True}, 7), ({"tail": "drop"}, 7), ({"tail": "mask"}, 8), ({"batch_size": 37}, 1),
    ({"ranks": (1, 3)}, 3), ({"ranks": (2, 3), "tail": "drop"}, 2),
    ({"batch_size": 38, "drop_last": True}, 0),
]  # fmt: skip


def _break(loader: Loader) -> None:
    for _ in loader:
        break


def _drop(loader: Loader) -> None:
    iterator = iter(loader)
    next(iterator)
    del iterator


def _close(loader: Loader) -> None:
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    iterator.close()
    assert next(iterator, None) is None


def _fail(loader: Loader) -> None:
    with contextlib.suppress(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError


def _abandon_a_generator(loader: Loader) -> None:
    def batches() -> Iterator[Any]:
        yield from loader

    generator = batches()
    next(generator)
    del generator


def _exhaust(loader: Loader) -> None:
    assert sum(1 for _ in loader) == len(loader)


class PassSuite(Promises):
    """A loader is iterated as torch's is, and what it started ends with the pass."""

    files_per_worker = 1  # that a loader keeps open for its next pass, at most

    @pytest.mark.promise("loader: Length")
    @pytest.mark.parametrize(("options", "length"), LENGTHS, ids=str)
    def test_its_length_is_the_number_of_its_batches_at_any_time(
        self, kind: LoaderOf, path: Path, options: dict[str, Any], length: int
    ) -> None:
        loader = kind.open(path, **{"batch_size": 5, "num_workers": 1, "seed": 0} | options)
        assert len(loader) == length
        for _ in range(2):
            iterator, num = iter(loader), 0
            for _ in iterator:
                num += 1
                assert len(loader) == len(iterator) == length
            assert num == len(loader) == length
            assert list(iterator) == []

    @pytest.mark.promise("loader: Iterators")
    def test_each_iter_is_a_fresh_pass_over_another_epoch(self, kind: LoaderOf, path: Path) -> None:
        loader = kind.open(path, batch_size=5, shuffle=True, num_workers=2)
        epochs = [tuple(flat(map(kind.ids, loader))) for _ in range(3)]
        assert all(sorted(ids) == list(range(NUM_SAMPLES)) for ids in epochs)
        assert len(set(epochs)) == 3
        in_order = kind.open(path, batch_size=10, num_workers=0)
        for _ in range(2):
            assert [kind.ids(batch) for batch in in_order] == [
                list(range(start, min(start + 10, NUM_SAMPLES))) for start in (0, 10, 20, 30)
            ]

    @pytest.mark.promise("loader: Epochs")
    @pytest.mark.parametrize("through", ["loader", "sampler"])
    def test_set_epoch_says_which_pass_comes_next(self, kind: LoaderOf, path: Path, through: str) -> None:
        loader = kind.open(path, batch_size=5, shuffle=True, num_workers=2)
        passes = [[kind.ids(batch) for batch in loader] for _ in range(4)]
        target = loader if through == "loader" else loader.sampler
        for epoch in (2, 0, 3):
            target.set_epoch(epoch)
            assert [kind.ids(batch) for batch in loader] == passes[epoch]
        target.set_epoch(1)
        assert [[kind.ids(batch) for batch in loader] for _ in range(2)] == passes[1:3], "and from there they count on"

    @pytest.mark.promise("loader: Epochs")
    def test_an_epoch_is_claimed_at_the_first_next(self, kind: LoaderOf, path: Path) -> None:
        """Frameworks call iter() just to see whether it works."""
        loader = kind.open(path, batch_size=5, shuffle=True, num_workers=2)
        expected = [[kind.ids(batch) for batch in loader] for _ in range(2)]
        loader.set_epoch(0)
        unused = [iter(loader) for _ in range(3)]
        assert [kind.ids(batch) for batch in loader] == expected[0]
        assert [kind.ids(batch) for batch in unused[1]] == expected[1]
        loader.set_epoch(0)
        late = iter(loader)
        loader.set_epoch(1)
        assert [kind.ids(batch) for batch in late] == expected[1]

    @pytest.mark.promise("loader: Iterators")
    def test_nothing_starts_before_the_first_next(self, kind: LoaderOf, path: Path) -> None:
        loader = kind.open(path, batch_size=5, num_workers=2)
        before, files = own_threads(), _num_open_files()
        iterators = [iter(loader) for _ in range(5)]
        len(loader), len(iterators[0]), loader.state_dict()
        assert own_threads() == before
        assert _num_open_files() == files
        next(iterators[0])
        assert len(own_threads()) >= len(before) + 2

    @pytest.mark.promise("loader: Iterators")
    def test_open_iterators_do_not_disturb_each_other(self, kind: LoaderOf, path: Path) -> None:
        loader = kind.open(path, batch_size=5, shuffle=True, num_workers=2)
        expected = [[kind.ids(batch) for batch in loader] for _ in range(2)]
        loader.set_epoch(0)
        passes = [iter(loader), iter(loader)]
        seen = [[kind.ids(next(one))] for one in passes]
        rng, left = random.Random(1), [0, 1]
        while left:
            number = rng.choice(left)
            batch = next(passes[number], None)
            if batch is None:
                left.remove(number)
            else:
                seen[number].append(kind.ids(batch))
        assert seen == expected

    @pytest.mark.parametrize("num_workers", [0, 2])
    @pytest.mark.parametrize("leave", [_break, _drop, _close, _fail, _abandon_a_generator, _exhaust])
    def test_a_pass_leaves_nothing_however_it_ends(
        self, kind: LoaderOf, path: Path, leave: Callable[[Loader], None], num_workers: int
    ) -> None:
        """And no collection of garbage is needed."""
        loader = kind.open(path, batch_size=4, shuffle=True, num_workers=num_workers)
        _exhaust(loader)
        gc.collect()
        gc.disable()
        try:
            before, files = (own_threads(), threading.active_count()), _num_open_files()
            for _ in range(20):
                leave(loader)
            assert (own_threads(), threading.active_count()) == before
            most = files + self.files_per_worker * num_workers
            assert _num_open_files() <= most, "workers that a loader keeps may have files open"
        finally:
            gc.enable()
        _exhaust(loader)

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_a_dropped_loader_has_no_file_open(self, kind: LoaderOf, path: Path, num_workers: int) -> None:
        """And no collection of garbage is needed: a program that makes many loaders does not run out of descriptors."""
        _exhaust(kind.open(path, batch_size=4, num_workers=num_workers))
        gc.collect()
        gc.disable()
        try:
            before = _num_open_files()
            for _ in range(3):
                _exhaust(kind.open(path, batch_size=4, num_workers=num_workers))
            deadline = time.monotonic() + 30  # as connections to other machines are closed by threads of their own
            while _num_open_files() > before:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            gc.enable()

    @pytest.mark.promise("loader: Errors")
    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_a_batch_that_fails_costs_no_other(self, kind: LoaderOf, path: Path, num_workers: int) -> None:
        """Its error is raised in its place. It leads to the iterator and nothing leads back, so the end of a loop frees both."""

        def fail(batch: Any) -> Any:
            if 6 in kind.ids(batch):
                raise KeyError("mine")
            return batch

        loader = kind.open(path, batch_size=5, num_workers=num_workers, batch_transform=fail)
        iterator = iter(loader)
        assert kind.ids(next(iterator)) == [0, 1, 2, 3, 4]
        with pytest.raises(KeyError, match="mine"):
            next(iterator)
        assert loader.state_dict()["samples_done"] == 10
        assert kind.ids(next(iterator)) == [10, 11, 12, 13, 14]
        del iterator
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(KeyError):
                _exhaust(loader)
            assert own_threads() == []
        finally:
            gc.enable()

    @pytest.mark.promise("loader: Errors")
    def test_stop_iteration_of_the_users_code_does_not_end_a_pass(self, kind: LoaderOf, path: Path) -> None:
        def stop(batch: Any) -> Any:
            return next(iter(())) if 6 in kind.ids(batch) else batch

        iterator = iter(kind.open(path, batch_size=5, num_workers=0, batch_transform=stop))
        assert kind.ids(next(iterator)) == [0, 1, 2, 3, 4]
        with pytest.raises(RuntimeError, match="StopIteration was raised while a batch was made"):
            next(iterator)
        assert kind.ids(next(iterator)) == [10, 11, 12, 13, 14]

    @pytest.mark.promise("loader: Iterators")
    def test_an_iterator_is_not_to_be_shared(self, kind: LoaderOf, path: Path) -> None:
        is_inside, told_off = threading.Event(), threading.Event()

        def wait(batch: Any) -> Any:
            is_inside.set()
            assert told_off.wait(30)
            return batch

        iterator, first = iter(kind.open(path, batch_size=4, num_workers=0, batch_transform=wait)), []
        thread = threading.Thread(target=lambda: first.append(kind.ids(next(iterator))))
        thread.start()
        assert is_inside.wait(30)
        try:
            with pytest.raises(LifecycleError, match="do not share an iterator between threads"):
                next(iterator)
        finally:
            told_off.set()
            thread.join(30)
        assert first == [[0, 1, 2, 3]], "the first thread is not disturbed"
        assert kind.ids(next(iterator)) == [4, 5, 6, 7]

    def test_torchs_own_threads_are_as_before(self, kind: LoaderOf, path: Path) -> None:
        """Work is done on one thread each; the caller's setting, and that of later threads, must not change."""
        used: set[int] = set()

        def note(batch: Any) -> Any:
            used.add(torch.get_num_threads())
            return batch

        before = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            for num_workers in (0, 2):
                for _ in kind.open(path, batch_size=9, num_workers=num_workers, batch_transform=note):
                    inside: list[int] = []
                    thread = threading.Thread(target=lambda inside=inside: inside.append(torch.get_num_threads()))
                    thread.start()
                    thread.join()
                    assert [torch.get_num_threads(), *inside] == [3, 3]
            assert used == {1}
        finally:
            torch.set_num_threads(before)

    def test_worker_init_fn_runs_in_each_thread(self, kind: LoaderOf, path: Path) -> None:
        seen: list[tuple[int, str]] = []
        loader = kind.open(
            path, num_workers=3, worker_init_fn=lambda number: seen.append((number, threading.current_thread().name))
        )
        assert seen == []
        for num_passes in (1, 2):
            _exhaust(loader)
            assert Counter(seen) == {(number, f"datapipe-{number}"): num_passes for number in range(kind.most_threads or 3)}

    def test_an_error_in_worker_init_fn_ends_the_pass(self, kind: LoaderOf, path: Path) -> None:
        def init(number: int) -> None:
            if number == 1:
                raise RuntimeError("no such device")

        iterator = iter(kind.open(path, num_workers=3, worker_init_fn=init))
        with pytest.raises(RuntimeError, match="no such device"):
            next(iterator)
        assert next(iterator, None) is None
        assert own_threads() == []

    def test_without_threads_the_caller_does_the_work(self, kind: LoaderOf, path: Path) -> None:
        """For debuggers: a breakpoint stops in the main thread."""
        seen: set[threading.Thread] = set()

        def note(batch: Any) -> Any:
            seen.add(threading.current_thread())
            return batch

        before = threading.active_count()
        for _ in kind.open(path, batch_size=9, num_workers=0, batch_transform=note):
            assert threading.active_count() == before
        assert seen == {threading.current_thread()}

    def test_timeout_raises_in_time_and_ends_the_pass(self, kind: LoaderOf, path: Path) -> None:
        release = threading.Event()

        def slow(batch: Any) -> Any:
            release.wait(20)
            return batch

        iterator = iter(kind.open(path, num_workers=2, timeout=0.2, batch_transform=slow))
        started = time.monotonic()
        try:
            with pytest.raises(LifecycleError, match=r"no batch within timeout=0\.2 s \(step 0\)"):
                next(iterator)
            assert time.monotonic() - started < 5, "it must not wait for the thread that hangs"
        finally:
            release.set()
        assert next(iterator, None) is None
        wait_until_no_thread_is_left()

    def test_timeout_counts_one_batch_not_the_pass(self, kind: LoaderOf, path: Path) -> None:
        def slow(batch: Any) -> Any:
            time.sleep(0.03)
            return batch

        loader = kind.open(path, timeout=1, num_workers=1, batch_transform=slow)
        assert len(flat(map(kind.ids, loader))) == NUM_SAMPLES

    def test_a_slow_consumer_finds_few_batches_waiting(self, kind: LoaderOf, path: Path) -> None:
        """Loading runs ahead by `depth` batches and no further."""
        begun: list[int] = []
        loader = kind.open(path, num_workers=2, prefetch_factor=3)
        loader.observe(lambda event: begun.append(event.step) if event.stage is Stage.PLAN else None)
        iterator = iter(loader)
        next(iterator)
        time.sleep(0.2)
        assert max(begun, default=0) <= loader.options.depth

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_its_stages_are_observed(self, kind: LoaderOf, path: Path, num_workers: int) -> None:
        events: list[StageEvent] = []
        loader = kind.open(path, batch_size=8, num_workers=num_workers)
        _exhaust(loader)
        loader.observe(events.append)
        start_ns = time.perf_counter_ns()
        _exhaust(loader)
        end_ns = time.perf_counter_ns()
        waits = [event for event in events if event.stage is Stage.WAIT]
        assert [event.step for event in waits] == list(range(len(loader)))
        assert sum(event.num_samples for event in waits) == NUM_SAMPLES
        assert all(start_ns <= event.start_ns <= event.start_ns + event.duration_ns <= end_ns for event in events)
        if not num_workers:
            work_ns = sum(event.duration_ns for event in events if event.stage is not Stage.WAIT)
            assert sum(event.duration_ns for event in waits) >= work_ns

    def test_an_observers_error_is_not_lost(self, kind: LoaderOf, path: Path) -> None:
        def fail(_: StageEvent) -> None:
            raise RuntimeError("observer broke")

        loader = kind.open(path, num_workers=2)
        loader.observe(fail)
        with pytest.raises(RuntimeError, match="observer broke"):
            _exhaust(loader)


def _num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
