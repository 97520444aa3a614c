"""Orders: bijections for any size, other ones for other keys, and uniform."""

from __future__ import annotations

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.order.plan import Cursor, Plan, Rank, Tail
from datapipe.order.sample_order import TABLE_LIMIT, Permutation, ShuffledOrder, WindowedOrder

EDGES = (1, 2, 3, 4, 5, 255, 256, 257, TABLE_LIMIT - 1, TABLE_LIMIT, TABLE_LIMIT + 1)
words64 = st.integers(0, 2**64 - 1)


def chi_square_limit(degrees: int) -> float:
    """What a chi-square statistic of that many degrees of freedom exceeds once in about 3 million times (5 sigma)."""
    # Wilson and Hilferty, "The Distribution of Chi-Square", 1931
    return degrees * (1 - 2 / (9 * degrees) + 5 * (2 / (9 * degrees)) ** 0.5) ** 3


@pytest.mark.parametrize("num_samples", EDGES)
@pytest.mark.parametrize("key", [0, 7, 2**64 - 1])
def test_is_a_bijection_at_the_edges(num_samples: int, key: int) -> None:
    permutation = Permutation(num_samples, key)
    positions = np.arange(num_samples)
    values = permutation(positions)
    assert values.dtype == np.int64
    assert np.array_equal(np.sort(values), positions)
    assert np.array_equal(permutation.inverse(values), positions)


@quick
@given(num_samples=st.integers(1, 3000), key=words64)
def test_is_a_bijection_of_any_small_size(num_samples: int, key: int) -> None:
    permutation = Permutation(num_samples, key)
    values = permutation(np.arange(num_samples))
    assert len(np.unique(values)) == num_samples
    assert np.array_equal(permutation.inverse(np.arange(num_samples)), np.argsort(values))


@quick
@given(num_samples=st.integers(TABLE_LIMIT, 2**40), key=words64, data=st.data())
def test_inverse_undoes_any_large_size(num_samples: int, key: int, data: st.DataObject) -> None:
    inside = st.integers(0, num_samples - 1)
    positions = np.array(sorted({0, num_samples - 1, *data.draw(st.lists(inside, max_size=40))}), np.int64)
    permutation = Permutation(num_samples, key)
    values = permutation(positions)
    assert values.min() >= 0
    assert values.max() < num_samples
    assert len(np.unique(values)) == len(positions)
    assert np.array_equal(permutation.inverse(values), positions)
    assert np.array_equal(permutation(permutation.inverse(positions)), positions)


@pytest.mark.parametrize("num_samples", [1 << 16, (1 << 16) + 1, 100_003])
def test_a_part_of_the_epoch_is_that_part_of_the_whole(num_samples: int) -> None:
    order = ShuffledOrder(num_samples, seed=3)
    whole = order(5, np.arange(num_samples))
    for start, stop in ((0, 1), (17, 900), (num_samples - 5, num_samples)):
        assert np.array_equal(order(5, np.arange(start, stop)), whole[start:stop])


@pytest.mark.parametrize("num_samples", [37, 70_000])
def test_epochs_and_seeds_differ(num_samples: int) -> None:
    positions = np.arange(num_samples)
    orders = [tuple(ShuffledOrder(num_samples, seed)(epoch, positions)) for seed in (0, 1, -1) for epoch in range(4)]
    assert len(set(orders)) == 12
    moved = np.mean([np.mean(np.array(order) != positions) for order in orders])
    assert moved > 0.9


def test_every_arrangement_is_equally_likely_for_tiny_sizes() -> None:
    """All 24 orders of 4 samples over 12,000 epochs."""
    positions = np.arange(4)
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(12_000):
        order = tuple(ShuffledOrder(4, seed=1)(epoch, positions).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    statistic = sum((count - 500) ** 2 / 500 for count in counts.values())
    assert statistic < chi_square_limit(23)


@pytest.mark.daily(5)
@pytest.mark.parametrize(("num_samples", "num_epochs"), [(10, 3000), (100, 3000), (66_000, 1500)])
@pytest.mark.parametrize("position", [0, 1, "last"])
def test_each_position_gets_each_sample_equally_often(num_samples: int, num_epochs: int, position: int | str) -> None:
    place = np.array([num_samples - 1 if position == "last" else position])
    values = np.array([ShuffledOrder(num_samples, seed=11)(epoch, place)[0] for epoch in range(num_epochs)])
    bins = min(10, num_samples)
    counts = np.bincount(values * bins // num_samples, minlength=bins)
    assert ((counts - num_epochs / bins) ** 2 / (num_epochs / bins)).sum() < chi_square_limit(bins - 1)


@pytest.mark.parametrize("num_samples", [50, 1000, 70_000])
def test_neighbours_part(num_samples: int) -> None:
    """Samples that lie side by side end up anywhere: displacements are those of a random permutation."""
    values = ShuffledOrder(num_samples, seed=2)(0, np.arange(num_samples)).astype(float)
    correlation = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert abs(correlation) < 5 / num_samples**0.5
    assert abs(np.corrcoef(values, np.arange(num_samples))[0, 1]) < 5 / num_samples**0.5


def test_an_empty_order_gives_nothing() -> None:
    assert len(ShuffledOrder(0, seed=0)(0, np.empty(0, np.int64))) == 0


# -- windows -----------------------------------------------------------------------------------------


def reads(order: WindowedOrder, rank: int, world_size: int, *, kept: int) -> list[int]:
    """The row groups that a rank reads in an epoch, one after the other, where it keeps the `kept` used last."""
    batch_size = order.global_batch // world_size
    cache: dict[int, None] = {}
    found = []
    for picks in Plan(order, batch_size, Rank(rank, world_size), Tail.DROP).steps(Cursor(2)):
        for group in (np.searchsorted(order.starts, picks.positions, side="right") - 1).tolist():
            if cache.pop(group, 0) == 0:
                found.append(group)
                if len(cache) >= kept:
                    cache.pop(next(iter(cache)))
            cache[group] = None
    return found


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_windows_read_each_row_group_about_once_whatever_the_number_of_ranks(world_size: int) -> None:
    order = WindowedOrder(np.arange(0, 20_001, 100), 5, global_batch=64)
    assert order.num_lanes == 16
    by_rank = [reads(order, rank, world_size, kept=5 * 16 // world_size) for rank in range(world_size)]
    num_reads = sum(map(len, by_rank))
    assert 200 <= num_reads <= 200 + 2 * 16, "lanes begin and end within row groups"


def test_windows_mix_what_is_far_apart() -> None:
    """A batch holds samples of many row groups, and neighbours of the data seldom meet in it."""
    order = WindowedOrder(np.arange(0, 20_001, 100), 5, global_batch=64)
    groups = np.searchsorted(order.starts, order(0, np.arange(64 * 200)), side="right") - 1
    assert np.mean([len(set(step)) for step in groups.reshape(-1, 64).tolist()]) > 14


def test_the_number_of_lanes_does_not_depend_on_the_number_of_ranks() -> None:
    starts = np.arange(0, 20_001, 100)
    for global_batch, lanes in ((64, 16), (60, 15), (17, 1), (256, 16), (7, 7), (1, 1)):
        assert WindowedOrder(starts, 5, global_batch=global_batch).num_lanes == lanes


def test_windows_of_lanes_end_one_after_the_other() -> None:
    """So that no step waits for the row groups of every lane at once; the first one has to."""
    order = WindowedOrder(np.arange(0, 40_001, 100), 5, global_batch=64)
    groups = np.searchsorted(order.starts, order(0, np.arange(64 * 600)), side="right").reshape(-1, 64)
    seen: set[int] = set()
    num_new = []
    for step in groups.tolist():
        num_new.append(len({*step} - seen))
        seen |= {*step}
    assert max(num_new[1:]) <= 6


def test_lanes_may_be_fewer() -> None:
    starts = np.arange(0, 20_001, 100)
    for max_lanes, lanes in ((100, 16), (16, 16), (15, 8), (3, 2), (1, 1)):
        order = WindowedOrder(starts, 5, global_batch=64, max_lanes=max_lanes)
        assert order.num_lanes == lanes
        assert np.array_equal(np.sort(order(0, np.arange(20_000))), np.arange(20_000))


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    batch=st.integers(1, 12),
    world_size=st.sampled_from([1, 2, 3, 4]),
    epoch=st.integers(0, 3),
)
@quick
def test_uses_say_when_each_row_group_is_needed(sizes: list[int], batch: int, world_size: int, epoch: int) -> None:
    """No sample comes outside of the steps that are told for its group, nor on a rank that does not own the lane."""
    starts = np.cumsum([0, *sizes])
    order = WindowedOrder(starts, seed=1, global_batch=batch * world_size)
    uses = order.uses(epoch)
    assert uses == sorted(uses, key=lambda use: use.first_step)
    assert {use.group for use in uses} == {group for group, size in enumerate(sizes) if size}
    num_full = len(order) // order.global_batch
    groups = np.searchsorted(starts, order(epoch, np.arange(len(order))), side="right") - 1
    for position, group in enumerate(groups.tolist()):
        step, within = divmod(position, order.global_batch)
        lanes = order.lanes_of(within // batch, world_size) if step < num_full else range(order.num_lanes, order.num_lanes + 1)
        assert any(use.group == group and use.first_step <= step <= use.last_step and use.lane in lanes for use in uses)
    assert len(uses) <= len(sizes) + 2 * (order.num_lanes + 1)
