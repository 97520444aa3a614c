"""Ctrl-C in a sampler; and where the threads of ended passes are freed, so that none is lost there."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fixtures import NUM_SAMPLES

import datapipe as dp
from datapipe import transforms as T


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
        with pytest.raises(dp.errors.StateError, match="does not give the positions that it gave"):
            go_on(iterator)
        return
    go_on(iterator)
    lost = set(range(NUM_SAMPLES)) - set(ids)
    assert ids == sorted(ids)
    assert len(lost) <= 3, "but for a batch that was on its way out"


@pytest.mark.parametrize("backend", ["images_cpu", "dali"])
def test_threads_of_ended_passes_are_not_freed_in_the_main_thread(folder: Path, backend: str) -> None:
    """Freeing a Thread runs Python code of `threading`, in which a Ctrl-C is swallowed."""
    loader = dp.DataLoader(folder, 3, transform=T.RandomResizedCrop(24), device="cpu", num_workers=2, backend=backend)
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
