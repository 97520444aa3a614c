"""Intervals hold what they promise, for steps that depend on each other too."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from datapipe.analysis.judge.bootstrap import Interval, block_length, block_rows, ratio_interval


def correlated(num: int, rho: float, seed: int) -> NDArray[np.float64]:
    draws = np.random.default_rng(seed).normal(0, 1, num)
    values = np.empty(num)
    values[0] = draws[0]
    for i in range(1, num):
        values[i] = rho * values[i - 1] + np.sqrt(1 - rho * rho) * draws[i]
    return values


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.85])
def test_the_truth_lies_within(rho: float) -> None:
    """95 of 100 promised; at least 84 of 100 kept, by series of 400 that depend on each other as steps do."""
    held = 0
    for seed in range(100):
        gaps = 3.0 + correlated(400, rho, seed)
        interval = ratio_interval(gaps, gaps + 10.0, seed=seed)
        held += interval.low <= 3.0 / 13.0 <= interval.high
    assert held >= 84


def test_a_block_is_as_long_as_the_memory() -> None:
    lengths = [np.median([block_length(correlated(1000, rho, seed)) for seed in range(20)]) for rho in (0.0, 0.5, 0.9)]
    assert lengths[0] <= 5
    assert lengths[0] < lengths[1] < lengths[2] <= 333
    assert block_length(np.full(50, 3.0)) == 1
    assert block_length(np.arange(4.0)) == 1


def test_a_ratio_that_never_changes_is_certain() -> None:
    below = np.random.default_rng(0).random(100) + 1
    interval = ratio_interval(below / 4, below)
    assert (interval.low, interval.value, interval.high) == pytest.approx((0.25, 0.25, 0.25))


def test_the_same_seed_gives_the_same_interval_and_long_runs_take_little_memory() -> None:
    gaps = np.random.default_rng(0).random(65_536)
    tracemalloc.start()
    interval = ratio_interval(gaps, gaps + 1, seed=3)
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert interval == ratio_interval(gaps, gaps + 1, seed=3)
    assert peak_nbytes < 100e6
    assert interval.high - interval.low < 0.01


def test_blocks_are_runs_around_a_circle() -> None:
    rows = block_rows(10, 4, (3, 11), seed=1)
    assert rows.shape == (3, 11)
    assert ((rows[:, 1:4] - rows[:, :3]) % 10 == 1).all()
    assert ((rows[:, 9:] - rows[:, 8:-1]) % 10 == 1).all()


def test_what_was_not_measured_is_no_interval() -> None:
    with pytest.raises(ValueError, match="not measured"):
        Interval(float("nan"), 0.0, 1.0)
