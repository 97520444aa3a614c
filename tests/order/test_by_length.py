"""Orders by length: each sample once, the same for any part of an epoch that is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.order.by_length import BalancedSteps, LikeLengths
from datapipe.order.sample_order import ShuffledOrder

LENGTHS = np.random.default_rng(0).integers(1, 2000, 10_007)


@pytest.mark.parametrize("global_batch", [1, 8, 64, 4096, 20_000])
def test_steps_of_like_lengths_have_each_sample_once(global_batch: int) -> None:
    order = LikeLengths(len(LENGTHS), 3, global_batch, LENGTHS.__getitem__)
    for epoch in (0, 1):
        samples = order(epoch, np.arange(len(order)))
        assert sorted(samples.tolist()) == list(range(len(order)))
        some = np.random.default_rng(1).integers(0, len(order), 100)
        assert (order(epoch, some) == samples[some]).all()
    assert (order(0, np.arange(100)) != order(1, np.arange(100))).any()


def test_steps_of_like_lengths_pad_little_and_come_in_random_order() -> None:
    order = LikeLengths(len(LENGTHS), 3, 64, LENGTHS.__getitem__)
    steps = LENGTHS[order(0, np.arange(len(order) // 64 * 64))].reshape(-1, 64)
    assert steps.sum() / (steps.max(axis=1).sum() * 64) > 0.9
    assert abs(np.corrcoef(np.arange(50), steps[:50].mean(axis=1))[0, 1]) < 0.5


def _efficiency(costs: np.ndarray, ranks: int) -> float:
    """Mean cost by that of the slowest rank at each micro-batch, which the others wait for."""
    per_rank = costs.reshape(-1, ranks, costs.shape[-1] // ranks).sum(axis=2)
    return float(per_rank.mean(axis=1).sum() / per_rank.max(axis=1).sum())


@pytest.mark.parametrize("global_batch", [8, 24, 64])
def test_balanced_steps_keep_what_a_step_has_and_even_ranks_out(global_batch: int) -> None:
    costs = LENGTHS.astype(np.float64) ** 2
    plain = ShuffledOrder(len(LENGTHS), 5)
    order = BalancedSteps(plain, global_batch, 4, lambda epoch, samples: costs[samples])
    step = 4 * global_batch
    everything = np.arange(len(LENGTHS))
    before, after = plain(2, everything), order(2, everything)
    num_full = len(LENGTHS) // step * step
    for one, other in zip(before[:num_full].reshape(-1, step), after[:num_full].reshape(-1, step), strict=True):
        assert sorted(one.tolist()) == sorted(other.tolist())
    assert (before[num_full:] == after[num_full:]).all()
    some = np.random.default_rng(1).integers(0, len(order), 50)
    assert (order(2, some) == after[some]).all()
    for ranks in (global_batch, global_batch // 2, global_batch // 4):
        even, uneven = (_efficiency(costs[one[:num_full]].reshape(-1, global_batch), ranks) for one in (after, before))
        assert even > uneven
        assert even > 0.7
