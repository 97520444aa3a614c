"""Orders in which samples repeat: shares, evenness, passes, occurrences."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import OptionError
from datapipe.order.draws import apart
from datapipe.order.plan import Cursor, Plan, Rank
from datapipe.order.sample_order import SequentialOrder, ShuffledOrder
from datapipe.order.sampling import MixedOrder, WeightedOrder, checked_weights, interleaved, shares

counts_of_sets = st.lists(st.integers(0, 400), min_size=1, max_size=7).filter(any)


@quick
@given(counts_of_sets)
def test_an_interleaving_holds_every_element_in_order_and_evenly(counts: list[int]) -> None:
    num = sum(counts)
    which, number = interleaved(counts, np.arange(num))
    for place, count in enumerate(counts):
        assert np.array_equal(number[which == place], np.arange(count))
        so_far = np.cumsum(which == place)
        assert np.abs(so_far - np.arange(1, num + 1) * count / num).max() < len(counts)
        if len(counts) <= 3:
            assert np.abs(so_far - np.arange(1, num + 1) * count / num).max() < 2


@quick
@given(counts_of_sets, st.randoms())
def test_any_part_of_an_interleaving_may_be_asked_for(counts: list[int], random: object) -> None:
    whole = np.stack(interleaved(counts, np.arange(sum(counts))))
    some = np.random.default_rng(sum(counts)).integers(0, sum(counts), 20)
    assert np.array_equal(np.stack(interleaved(counts, some)), whole[:, some])


def test_interleavings_of_billions_are_exact() -> None:
    counts = (10**9, 3 * 10**8, 7)
    for start in (0, 6 * 10**8, sum(counts) - 1000):
        which, number = interleaved(counts, np.arange(start, start + 1000))
        assert (which >= 0).all()
        for place in range(2):
            assert (np.diff(number[which == place]) == 1).all()
    assert interleaved(counts, np.array([sum(counts) - 1]))[1][0] in (counts[0] - 1, counts[1] - 1, counts[2] - 1)


@quick
@given(st.lists(st.floats(0, 100), min_size=1, max_size=9).filter(lambda weights: sum(weights) > 1e-3), st.integers(0, 10_000))
def test_shares_are_whole_and_off_by_less_than_one(weights: list[float], num_samples: int) -> None:
    found, total = shares(weights, num_samples), sum(map(Fraction, weights))
    assert sum(found) == num_samples
    assert all(abs(count - Fraction(w) * num_samples / total) < 1 for count, w in zip(found, weights, strict=True))


def mixed(num_samples: int = 200) -> MixedOrder:
    orders = [ShuffledOrder(100, 1), ShuffledOrder(30, 2), SequentialOrder(7)]
    return MixedOrder(orders, shares([0.7, 0.2, 0.1], num_samples))


def test_each_set_is_gone_through_before_any_sample_comes_again() -> None:
    order = mixed()
    epochs = [order(epoch, np.arange(200)) for epoch in range(6)]
    drawn = np.concatenate(epochs)
    for first, size in ((0, 100), (100, 30), (130, 7)):
        own = drawn[(drawn >= first) & (drawn < first + size)]
        for start in range(0, len(own) - size + 1, size):
            assert np.array_equal(np.sort(own[start : start + size]), np.arange(first, first + size))
    assert np.array_equal(order(3, np.array([150, 3])), epochs[3][[150, 3]])
    assert np.array_equal(pickle.loads(pickle.dumps(order))(2, np.arange(200)), epochs[2])


def test_no_two_showings_of_a_sample_draw_alike() -> None:
    for order in (mixed(), WeightedOrder(np.cumsum(np.ones(50)), 200, 3)):
        positions = np.arange(200)
        seen: set[tuple[int, int]] = set()
        for epoch in range(3):
            keys = apart(order(epoch, positions), order.occurrences(epoch, positions))
            seen |= {(epoch, key) for key in keys.tolist()}
        assert len(seen) == 600


def test_ratios_hold_within_a_batch_and_over_ranks() -> None:
    """0.7, 0.2 and 0.1 to within half a percent of an epoch, at once; the same samples for any number of ranks."""
    sizes, weights = (5000, 9000, 400), (0.7, 0.2, 0.1)
    order = MixedOrder([ShuffledOrder(size, 1) for size in sizes], shares(weights, 20_000))
    which, _ = interleaved(order.counts, np.arange(20_000))
    for place, weight in enumerate(weights):
        share = np.cumsum(which == place) / np.arange(1, 20_001)
        assert np.abs(share[400:] - weight).max() < 0.005
    for world_size in (2, 4):
        plans = [Plan(order, 80 // world_size, Rank(rank, world_size)) for rank in range(world_size)]
        steps = [np.concatenate([plan.picks_of(plan.span(1, step)).positions for plan in plans]) for step in range(5)]
        assert np.array_equal(np.concatenate(steps), order(1, np.arange(400)))
    rest = list(Plan(order, 20, Rank(1, 4)).steps(Cursor(1, 19_840)))
    assert [picks.step for picks in rest] == [248, 249]


def test_weights_are_frequencies() -> None:
    weights = np.array([1, 0, 3, 0.5, 0])
    order = WeightedOrder(np.cumsum(weights), 40_000, seed=1)
    counts = np.bincount(order(0, np.arange(40_000)), minlength=5)
    assert counts[1] == counts[4] == 0
    assert np.abs(counts / 40_000 - weights / weights.sum()).max() < 0.01
    assert not np.array_equal(order(0, np.arange(100)), order(1, np.arange(100)))
    assert order.kind != WeightedOrder(np.cumsum(weights + 1), 40_000, seed=1).kind


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([1, 2], "shape"),
        ([1, -1, 2], "negative"),
        ([0, 0, 0], "all zero"),
        ([1, np.nan, 1], "finite"),
        ("abc", "a number for each"),
    ],
)
def test_weights_that_are_none(weights: object, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        checked_weights(weights, num=3, what="sample")
