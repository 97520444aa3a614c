"""The order of visits is a shuffle: each sample once, another order every epoch, batches as varied as those of a full shuffle."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.order.sampling import MixedOrder, own_seed
from datapipe.order.visits import Runs, VisitOrder

RUNS = st.lists(st.integers(1, 20), min_size=1, max_size=20)


def order_of(sizes: list[int], *, per_visit: int, num_lanes: int, seed: int = 0) -> VisitOrder:
    return VisitOrder([Runs(np.cumsum([0, *sizes], dtype=np.int64), seed, per_visit)], num_lanes)


@quick
@given(RUNS, st.integers(1, 8), st.integers(1, 40), st.integers(0, 3))
def test_each_sample_comes_once_and_with_those_of_its_visit(sizes: list[int], per_visit: int, num_lanes: int, seed: int) -> None:
    order = order_of(sizes, per_visit=per_visit, num_lanes=num_lanes, seed=seed)
    positions = np.arange(len(order), dtype=np.int64)
    for epoch in (0, 1):
        samples = order(epoch, positions)
        assert sorted(samples.tolist()) == positions.tolist()
        visits = order.visits_at(epoch, positions)
        counts = Counter(visits)
        for visit, num in counts.items():
            mine = order.samples(visit).tolist()
            assert mine == [sample for sample, other in zip(samples.tolist(), visits, strict=True) if other == visit]
            assert len(mine) == num == visit.end - visit.first <= per_visit
            runs = np.searchsorted(order.datasets[0].starts, mine, side="right")
            assert len({*runs.tolist()}) == 1
            lanes = {position % num_lanes for position, other in zip(positions.tolist(), visits, strict=True) if other == visit}
            assert lanes == {visit.lane}


@quick
@given(RUNS, st.integers(1, 8), st.integers(1, 40))
def test_any_positions_can_be_asked_for_alone(sizes: list[int], per_visit: int, num_lanes: int) -> None:
    order = order_of(sizes, per_visit=per_visit, num_lanes=num_lanes)
    whole = order(2, np.arange(len(order), dtype=np.int64))
    some = np.random.default_rng(0).integers(0, len(order), 7)
    assert order(2, some).tolist() == whole[some].tolist()


def test_epochs_and_seeds_differ() -> None:
    orders = [order_of([15] * 20, per_visit=4, num_lanes=32, seed=seed) for seed in (0, 1)]
    found = [order(epoch, np.arange(300)).tolist() for order in orders for epoch in (0, 1)]
    assert all(one != other for one, other in itertools.combinations(found, 2))


def test_runs_are_cut_elsewhere_in_each_epoch() -> None:
    order = order_of([15] * 20, per_visit=4, num_lanes=8)
    together = [
        {frozenset(order.samples(visit).tolist()) for visit in order.visits_at(epoch, np.arange(300))} for epoch in (0, 1)
    ]
    assert len(together[0] & together[1]) < 10


@pytest.mark.nightly
def test_means_of_batches_vary_as_in_a_full_shuffle() -> None:
    """Samples of a run are alike, as windows of a video are; 32 samples a batch."""
    num_runs, size, batch = 2000, 15, 32
    rng = np.random.default_rng(0)
    values = np.repeat(rng.normal(size=num_runs), size) + 0.1 * rng.normal(size=num_runs * size)

    def ratios(per_visit: int, num_lanes: int) -> list[float]:
        """The variance of means of 1 and of 16 batches, over that of independent samples."""
        order = order_of([size] * num_runs, per_visit=per_visit, num_lanes=num_lanes)
        mixed = values[order(0, np.arange(len(order), dtype=np.int64))]
        found = []
        for num in (batch, 16 * batch):
            means = mixed[: len(mixed) // num * num].reshape(-1, num).mean(axis=1)
            found.append(float(means.var() / (values.var() / num)))
        return found

    for per_visit in (1, 4, 15):
        one, sixteen = ratios(per_visit, 16 * batch)
        assert 0.7 < one < 1.3
        assert sixteen < 1.5  # of 58 means
    assert ratios(15, batch)[1] > 5  # lanes of a single batch: what the 16 times as many are for


def mixed_of(
    sizes: list[list[int]], counts: list[int], *, per_visit: int, num_lanes: int, is_shuffled: bool = True
) -> VisitOrder:
    starts = [np.cumsum([0, *one], dtype=np.int64) for one in sizes]
    offsets = np.cumsum([0, *(one[-1] for one in starts)]).tolist()
    runs = [
        Runs(one, own_seed(0, place), per_visit, is_shuffled, offset)
        for place, (one, offset) in enumerate(zip(starts, offsets, strict=False))
    ]
    return VisitOrder(runs, num_lanes, tuple(counts))


MIXES = st.lists(st.tuples(RUNS, st.integers(0, 200)), min_size=1, max_size=4).filter(lambda mix: any(count for _, count in mix))


@pytest.mark.nightly
@quick
@given(MIXES, st.integers(1, 8), st.integers(1, 40), st.booleans())
def test_mixed_datasets_come_as_often_as_they_should(
    mix: list[tuple[list[int], int]], per_visit: int, num_lanes: int, is_shuffled: bool
) -> None:
    """In three epochs, in which all samples of each come before any comes again; visits stay in their lanes."""
    sizes, counts = [one for one, _ in mix], [count for _, count in mix]
    order = mixed_of(sizes, counts, per_visit=per_visit, num_lanes=num_lanes, is_shuffled=is_shuffled)
    ends = np.cumsum([0, *map(sum, sizes)])
    positions = np.arange(len(order), dtype=np.int64)
    seen: Counter[int] = Counter()
    for epoch in range(3):
        samples, visits = order(epoch, positions), order.visits_at(epoch, positions)
        dataset = np.searchsorted(ends, samples, side="right") - 1
        assert np.bincount(dataset, minlength=len(counts)).tolist() == counts
        assert [visit.dataset for visit in visits] == dataset.tolist()
        for visit, num in Counter(visits).items():
            mine = [sample for sample, other in zip(samples.tolist(), visits, strict=True) if other == visit]
            assert order.samples(visit).tolist() == mine
            assert num == visit.end - visit.first
            assert order.occurrence(visit) == visit.turn
        assert {visit.lane for visit in visits} <= {*range(num_lanes)}
        assert [visit.lane for visit in visits] == (positions % num_lanes).tolist()
        seen.update(samples.tolist())
        for place, (first, end) in enumerate(itertools.pairwise(ends.tolist())):
            times = [seen[sample] for sample in range(first, end)]
            assert max(times) - min(times) <= 1, place


def test_a_mix_has_its_shares_everywhere() -> None:
    counts = [6000, 2500, 1500, 10]
    order = mixed_of([[15] * 400, [7] * 100, [3] * 1000, [5]], counts, per_visit=4, num_lanes=512)
    shares = np.array(counts) / sum(counts)
    ends = np.cumsum([0, 6000, 700, 3000, 5])
    dataset = np.searchsorted(ends, order(1, np.arange(len(order), dtype=np.int64)), side="right") - 1
    for size in (32, 100, 512, 2000):
        for first in range(0, len(order) - size, size):
            held = np.bincount(dataset[first : first + size], minlength=4)
            assert np.abs(held - shares * size).max() <= 3 + 2 * size / 512, (size, first)


def test_a_mix_in_one_lane_is_that_of_full_shuffles() -> None:
    """With visits of one sample: what `MixedOrder` makes of the orders of each dataset."""
    order = mixed_of([[9] * 20, [4] * 30], [150, 70], per_visit=1, num_lanes=1)
    alone = [VisitOrder([Runs(one.starts, one.seed, 1)], 1) for one in order.datasets]
    positions = np.arange(220, dtype=np.int64)
    for epoch in range(3):
        assert order(epoch, positions).tolist() == MixedOrder(alone, (150, 70))(epoch, positions).tolist()


def test_a_mix_of_one_is_shuffled_as_that_dataset_alone() -> None:
    for num_lanes in (1, 7, 64):
        mixed, alone = (
            mixed_of([[15] * 20], [300], per_visit=4, num_lanes=num_lanes),
            order_of([15] * 20, per_visit=4, num_lanes=num_lanes),
        )
        assert mixed(3, np.arange(300)).tolist() == alone(3, np.arange(300)).tolist()
