"""Ctrl-C at every place of a `next()` that can hear it."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from fixtures import NUM_SAMPLES

import datapipe as dp

pytestmark = pytest.mark.slow


def interrupted(do: Callable[[], Any], at: int) -> tuple[str | None, Any]:
    """The place of the `at`-th function that `do` enters, where KeyboardInterrupt is raised, and what `do` returns if it does.

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


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("backend", ["images_cpu", "dali"])
def test_ctrl_c_is_heard_wherever_it_comes_and_the_pass_goes_on(folder: Path, num_workers: int, backend: str) -> None:
    arguments = {"shuffle": True, "device": "cpu", "num_workers": num_workers, "backend": backend}
    loader = dp.DataLoader(folder, 3, transform=dp.RandomResizedCrop(24), **arguments)
    expected = [images.clone() for images, _ in loader]
    num_heard, at = 0, 0
    while True:
        at += 1
        loader.set_epoch(0)
        iterator = iter(loader)
        assert torch.equal(next(iterator)[0], expected[0])
        try:
            place, batch = interrupted(lambda: next(iterator), at)  # noqa: B023
        except KeyboardInterrupt:
            num_heard += 1
            images = next(iterator)[0]  # the interrupted batch, or the one after it if that was on its way out
            assert torch.equal(images, expected[1]) or torch.equal(images, expected[2])
        else:
            assert place is None, f"Ctrl-C is lost at {place}"
            assert torch.equal(batch[0], expected[1])
            break
    assert num_heard > 20


class Interrupted:
    """A sampler in which Ctrl-C arrives, at its 8th sample, in its first pass."""

    def __init__(self, num: int, *, repeats: bool) -> None:
        self._num, self._repeats, self._passes = num, repeats, 0

    def __iter__(self) -> Iterator[int]:
        self._passes += 1
        for place in range(self._num):
            if (self._passes, place) == (1, 7):
                raise KeyboardInterrupt
            yield place if self._repeats else (place + self._passes) % self._num


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("repeats", [True, False])
def test_a_sampler_is_asked_again_after_ctrl_c(folder: Path, num_workers: int, repeats: bool) -> None:
    """A generator that raised gives nothing more, and a pass that ended there would have lost the rest without a word."""
    sampler = Interrupted(NUM_SAMPLES, repeats=repeats)
    loader = dp.DataLoader(folder, 3, sampler=sampler, output="dict", num_workers=num_workers, prefetch_factor=1)
    ids: list[int] = []

    def go_on(iterator: Iterator[dict[str, torch.Tensor]]) -> None:
        for batch in iterator:
            ids.extend(batch["id"].tolist())

    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        go_on(iterator)
    if not repeats:
        with pytest.raises(dp.StateError, match="does not give the positions that it gave"):
            go_on(iterator)
        return
    go_on(iterator)
    lost = set(range(NUM_SAMPLES)) - set(ids)
    assert ids == sorted(ids)
    assert len(lost) <= 3, "but for a batch that was on its way out"


@pytest.mark.parametrize("backend", ["images_cpu", "dali"])
def test_threads_of_ended_passes_are_not_freed_in_the_main_thread(folder: Path, backend: str) -> None:
    """Freeing a Thread runs Python code of `threading`, in which a Ctrl-C is swallowed."""
    loader = dp.DataLoader(folder, 3, transform=dp.RandomResizedCrop(24), device="cpu", num_workers=2, backend=backend)
    freed_in: list[threading.Thread] = []
    references: list[weakref.ref[threading.Thread]] = []
    for _ in range(4):
        iterator = iter(loader)
        next(iterator)
        names = ("datapipe-0", "datapipe-1", "datapipe-lane-0")
        references += [
            weakref.ref(thread, lambda _: freed_in.append(threading.current_thread()))
            for thread in threading.enumerate()
            if thread.name in names
        ]
        del iterator
    assert len(freed_in) >= 4
    assert threading.main_thread() not in freed_in
