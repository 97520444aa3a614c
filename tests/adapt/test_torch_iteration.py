"""Passes over loaders that stay with torch's workers: what torch's own iterators do, ours do."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import datapipe as dp

NUM = 24


class Numbers(Dataset[int]):
    """Code of the user's, of which some samples fail."""

    def __init__(self, failing: tuple[int, ...] = ()) -> None:
        self.failing = failing

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, number: int) -> int:
        if number in self.failing:
            raise OSError(f"no sample {number}")
        return number


class Whole(Numbers):
    """A sampler's consumer that draws everything at once and records it."""

    def __getitems__(self, keys: Any) -> list[str]:
        return [repr(keys)]


def as_it_is(batch: Any) -> Any:
    return batch


class Keys:
    """A batch sampler that gives what no list is."""

    def __iter__(self) -> Iterator[Any]:
        yield {"rows": [3, 1], "columns": "ab"}
        yield slice(2, 8)
        yield (4, 5)

    def __len__(self) -> int:
        return 3


def told(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def outcomes(iterator: Iterator[Any], limit: int = 50) -> list[Any]:
    """What each `next()` gave until the end: a batch, or the name of the exception."""
    found: list[Any] = []
    for _ in range(limit):
        try:
            found.append(next(iterator).tolist())
        except StopIteration:
            return found
        except Exception as exc:
            found.append(type(exc).__name__)
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_goes_on_after_a_batch_that_failed(num_workers: int) -> None:
    def theirs() -> Any:
        return DataLoader(Numbers(failing=(0, 9, 10, 23)), 4, num_workers=num_workers)

    expected = outcomes(iter(theirs()))
    assert expected.count("OSError") == 3
    assert len(expected) == 6
    ours = dp.from_torch(theirs())
    for _ in range(2):
        assert outcomes(iter(ours)) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_failed_is_done_in_the_state(num_workers: int) -> None:
    ours = dp.from_torch(DataLoader(Numbers(failing=(5,)), 4, num_workers=num_workers))
    iterator = iter(ours)
    next(iterator)
    with pytest.raises(OSError, match="no sample 5"):
        next(iterator)
    assert ours.state_dict()["samples_done"] == 8
    again = dp.from_torch(DataLoader(Numbers(), 4, num_workers=num_workers))
    again.load_state_dict(ours.state_dict())
    assert told(again) == told(iterator)


def test_workers_end_with_the_loop_that_an_error_of_theirs_ends() -> None:
    """No collection is needed: one while other workers are forked would end these after 5 seconds."""
    before = set(multiprocessing.active_children())
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(OSError, match="no sample 9") as caught:
            told(dp.from_torch(DataLoader(Numbers(failing=(9,)), 4, num_workers=2)))
        assert "reraise" in [entry.name for entry in caught.traceback], "where torch raised it"
        del caught
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_samples_stop_iteration_does_not_end_the_epoch(num_workers: int) -> None:
    """Also in the last batch, where nothing else would tell it from the end."""

    class Stopping(Numbers):
        def __getitem__(self, number: int) -> int:
            return next(iter(())) if number in (5, 23) else number

    ours = dp.from_torch(DataLoader(Stopping(), 4, num_workers=num_workers))
    assert outcomes(iter(ours)) == [
        [0, 1, 2, 3],
        "RuntimeError",
        *([n, n + 1, n + 2, n + 3] for n in range(8, 20, 4)),
        "RuntimeError",
    ]
    assert ours.state_dict()["epoch"] == 1
    with pytest.raises(RuntimeError, match="StopIteration was raised while a batch was made"):
        told(ours)


@pytest.mark.nightly
def test_a_wait_that_failed_is_no_batch() -> None:
    """After torch's timeout the batch that was waited for still comes, and the state stands before it."""
    ours = dp.from_torch(DataLoader(Slow(), 4, num_workers=1, timeout=0.5))
    iterator = iter(ours)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    assert ours.state_dict()["samples_done"] == 0
    first = next(batch for batch in outcomes(iterator) if isinstance(batch, list))
    assert first == [0, 1, 2, 3]


class Slow(Numbers):
    def __getitem__(self, number: int) -> int:
        if number == 0:
            threading.Event().wait(2)
        return number


def test_an_error_of_the_sampler_comes_after_the_batches_before_it() -> None:
    class Failing:
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([0, 1], [2, 3])
            raise KeyError("no more")

        def __len__(self) -> int:
            return 5

    for num_workers in (0, 1):
        ours = dp.from_torch(DataLoader(Numbers(), batch_sampler=Failing(), num_workers=num_workers))
        assert outcomes(iter(ours)) == [[0, 1], [2, 3], "KeyError"]
        assert ours.state_dict()["epoch"] == 0, "the epoch has not ended"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_batch_sampler_gives_is_handed_on(num_workers: int) -> None:
    def theirs() -> Any:
        return DataLoader(Whole(), batch_sampler=Keys(), num_workers=num_workers, collate_fn=as_it_is)

    expected = [[repr(keys)] for keys in Keys()]
    assert list(theirs()) == expected
    ours = dp.from_torch(theirs())
    iterator = iter(ours)
    assert next(iterator) == expected[0]
    again = dp.from_torch(theirs())
    again.load_state_dict(ours.state_dict())
    assert list(again) == list(iterator) == expected[1:]


def test_batches_of_arrays_are_told_apart_whole() -> None:
    """Their repr leaves out what is in the middle."""

    def batches(changed: int) -> list[torch.Tensor]:
        return [torch.arange(2000).index_fill(0, torch.tensor([900]), changed) % NUM, torch.arange(4)]

    def theirs(changed: int) -> Any:
        return dp.from_torch(DataLoader(Numbers(), batch_sampler=batches(changed)))

    loader = theirs(1)
    next(iter(loader))
    same, other = theirs(1), theirs(2)
    for resumed in (same, other):
        resumed.load_state_dict(loader.state_dict())
    assert told(same) == [[0, 1, 2, 3]]
    with pytest.raises(dp.errors.StateError, match="does not give the positions that it gave"):
        next(iter(other))


def test_iterators_have_a_length() -> None:
    ours = dp.from_torch(DataLoader(Numbers(), 5))
    iterator = iter(ours)
    assert len(iterator) == len(ours) == 5  # type: ignore[arg-type]
    next(iterator)
    assert len(iterator) == 5  # type: ignore[arg-type]


def test_a_state_taken_after_the_last_batch_leaves_nothing_of_its_epoch() -> None:
    def make() -> Any:
        return dp.from_torch(DataLoader(Numbers(), 4, shuffle=True), seed=5)

    loader = make()
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    inside = loader.state_dict()
    assert next(iterator, None) is None
    ended = loader.state_dict()
    following = told(loader)
    resumed = make()
    resumed.load_state_dict(inside)
    assert told(resumed) == []
    assert told(resumed) == following
    resumed.load_state_dict(ended)
    assert told(resumed) == following


def share(iterator: Iterator[Any], hold: Callable[[], None]) -> list[BaseException]:
    """The error of a second thread that calls next() while the first is inside."""
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            next(iterator)
        except BaseException as exc:
            caught.append(exc)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(30)
    hold()
    return caught


def test_an_iterator_is_not_to_be_shared() -> None:
    inside, told_off = threading.Event(), threading.Event()

    class Waiting(Numbers):
        def __getitem__(self, number: int) -> int:
            inside.set()
            assert told_off.wait(30)
            return number

    ours = dp.from_torch(DataLoader(Waiting(), 4))
    iterator = iter(ours)
    first: list[Any] = []
    thread = threading.Thread(target=lambda: first.append(next(iterator).tolist()))
    thread.start()
    assert inside.wait(30)
    (error,) = share(iterator, told_off.set)
    thread.join(30)
    assert isinstance(error, dp.errors.LifecycleError)
    assert "do not share an iterator between threads" in str(error)
    assert first == [[0, 1, 2, 3]], "the first thread is not disturbed"
    assert next(iterator).tolist() == [4, 5, 6, 7]
