"""The order of visits is a shuffle: each sample once, another order every epoch, batches as varied as those of a full shuffle."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.order.visits import VisitOrder

RUNS = st.lists(st.integers(1, 20), min_size=1, max_size=20)


def order_of(sizes: list[int], *, per_visit: int, num_lanes: int, seed: int = 0) -> VisitOrder:
    return VisitOrder(np.cumsum([0, *sizes], dtype=np.int64), seed, per_visit, num_lanes)


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
            runs = np.searchsorted(order.run_starts, mine, side="right")
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
