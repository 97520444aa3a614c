"""The same Dataset read by several processes at once, in forks: whether they wait for each other."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import pytest
import torch
from fixtures import timed
from torch.utils.data import DataLoader, Dataset

from datapipe.instruments.trials.dataset import held_for_trial
from datapipe.instruments.trials.scaling import try_scaling


class Slow(Dataset[torch.Tensor]):
    """Each sample takes 2 ms, behind a lock if there is one."""

    def __init__(self, lock: Any = None) -> None:
        self.lock = lock

    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> torch.Tensor:
        if self.lock is None:
            time.sleep(0.002)
        else:
            with self.lock:
                time.sleep(0.002)
        return torch.zeros(2)


def stalls(dataset: Any, *, seconds: float = 0.4, **options: Any) -> dict[int, float]:
    found = try_scaling(held_for_trial(DataLoader(dataset, batch_size=4, **options)), (1, 4), seconds=seconds)
    return {int(num): one["stall_s"] for num, one in found["levels"].items()}


@pytest.mark.nightly
@timed
def test_workers_behind_a_lock_wait_for_each_other() -> None:
    found = stalls(Slow(multiprocessing.get_context("fork").Lock()))
    assert found[1] >= 0.007
    assert found[4] > 2 * found[1]


@pytest.mark.nightly
@timed
def test_workers_that_wait_for_themselves_do_not() -> None:
    found = stalls(Slow(), num_workers=2)
    assert found[1] >= 0.007
    assert found[4] < 2 * found[1]


def test_code_that_fails_is_told_and_leaves_no_process() -> None:
    class Failing(Slow):
        def __getitem__(self, number: int) -> torch.Tensor:
            if os.getpid() != parent:
                raise KeyError("no such sample")
            return torch.zeros(2)

    parent = os.getpid()
    found = try_scaling(held_for_trial(DataLoader(Failing(), batch_size=4)), (1, 2), seconds=0.1)
    assert "no such sample" in found["reason"] or "BrokenBarrierError" in found["reason"]
