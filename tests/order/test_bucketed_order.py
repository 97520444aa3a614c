"""Orders whose steps are of one bucket each: every sample once, but those that fill steps up; the same on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.order.buckets import BucketedOrder
from datapipe.order.plan import Cursor, Plan, Rank, Tail

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)


def order_of(
    sizes: list[int],
    batch_size: int,
    num_ranks: int = 1,
    *,
    tail: Tail = Tail.PAD,
    shuffle: bool = True,
    counts: list[int] | None = None,
    shares: list[int] | None = None,
) -> BucketedOrder:
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return BucketedOrder(
        members=np.random.default_rng(0).permutation(int(starts[-1])).astype(np.int64),
        starts=starts,
        counts=np.array(sizes if counts is None else counts, np.int64),
        shares=np.array([batch_size] * len(sizes) if shares is None else shares, np.int64),
        batch_size=batch_size,
        num_ranks=num_ranks,
        seed=1,
        tail=tail,
        shuffle=shuffle,
    )


def buckets_of(order: BucketedOrder, samples: np.ndarray) -> np.ndarray:
    place = np.argsort(order.members)[samples]
    return np.searchsorted(order.starts, place, side="right") - 1


@given(SIZES, st.integers(1, 12), st.booleans(), st.booleans(), st.integers(0, 3))
@quick
def test_each_step_is_of_one_bucket_and_each_sample_comes(
    sizes: list[int], global_batch: int, drops: bool, shuffle: bool, epoch: int
) -> None:
    order = order_of(sizes, global_batch, tail=Tail.DROP if drops else Tail.PAD, shuffle=shuffle)
    positions = np.arange(len(order), dtype=np.int64)
    found = order(epoch, positions)
    for first in range(0, len(order), global_batch):
        assert len(set(buckets_of(order, found[first : first + global_batch]).tolist())) == 1
    fills = order.fills(epoch, positions)
    once = found[~fills]
    assert len(set(once.tolist())) == len(once)
    if drops:
        assert not fills.any()
        assert len(once) == sum(size // global_batch * global_batch for size in sizes)
    else:
        assert sorted(once.tolist()) == list(range(sum(sizes)))
        assert len(order) - sum(sizes) < global_batch * sum(map(bool, sizes))
    pairs = list(zip(found.tolist(), order.occurrences(epoch, positions).tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


@given(SIZES, st.integers(1, 12), st.data())
@quick
def test_any_part_of_an_epoch_is_that_part_of_the_whole(sizes: list[int], global_batch: int, data: st.DataObject) -> None:
    order = order_of(sizes, global_batch)
    asked = np.array(data.draw(st.lists(st.integers(0, len(order) - 1), max_size=30)), np.int64)
    whole = order(5, np.arange(len(order), dtype=np.int64))
    assert order(5, asked).tolist() == whole[asked].tolist()


@pytest.mark.parametrize("tail", Tail)
def test_ranks_have_the_same_bucket_in_each_step_and_resume_on_others(tail: Tail) -> None:
    plans = {}
    for world in (1, 3, 4):
        order = order_of([30, 7, 0, 19], 12 // world, world, tail=tail)
        plans[world] = [Plan(order, 12 // world, Rank(rank, world), tail) for rank in range(world)]
    whole = [picks.positions.tolist() for picks in plans[1][0].steps(Cursor(2))]
    for world, ranks in plans.items():
        steps = list(zip(*(plan.steps(Cursor(2)) for plan in ranks), strict=True))
        assert len(steps) == ranks[0].num_steps == len(whole)
        for number, (step, together) in enumerate(zip(steps, whole, strict=True)):
            found = np.concatenate([picks.positions for picks in step])
            assert len(set(buckets_of(order, found).tolist())) == 1, (world, number)
            assert found.tolist()[: len(together)] == together
        later = list(zip(*(plan.steps(Cursor(2, 24)) for plan in ranks), strict=True))
        assert [picks.positions.tolist() for picks in later[0]] == [picks.positions.tolist() for picks in steps[2]]


def test_a_mask_marks_what_fills_steps_up() -> None:
    plan = Plan(order_of([30, 7, 19], 8, tail=Tail.MASK), 8, Rank(), Tail.MASK)
    real = np.concatenate([picks.positions[picks.real] for picks in plan.steps(Cursor(0))])
    assert sorted(real.tolist()) == list(range(56))


def test_what_fills_no_step_differs_from_epoch_to_epoch() -> None:
    order = order_of([13, 13], 8, tail=Tail.DROP)
    left_out = [set(range(26)) - set(order(epoch, np.arange(16)).tolist()) for epoch in range(6)]
    assert len(set.union(*left_out)) > len(left_out[0])


def test_steps_of_buckets_are_mixed() -> None:
    order = order_of([800, 800], 8)
    steps = buckets_of(order, order(0, np.arange(0, 1600, 8)))
    assert 60 < np.flatnonzero(np.diff(steps)).size < 140


BUCKETS = st.lists(st.tuples(st.integers(1, 30), st.floats(0.0, 3.0), st.integers(1, 6)), min_size=1, max_size=5)


@given(BUCKETS, st.integers(1, 3), st.sampled_from(Tail), st.booleans(), st.integers(0, 3))
@quick
def test_buckets_of_other_batch_sizes_and_weights(
    drawn: list[tuple[int, float, int]], num_ranks: int, tail: Tail, shuffle: bool, epoch: int
) -> None:
    """Each bucket has its count of samples, in batches of its size, as often as each other to one, equally many on each rank."""
    sizes, shares = [size for size, _, _ in drawn], [share for _, _, share in drawn]
    counts = [round(size * weight) for size, weight, _ in drawn]
    order = order_of(sizes, 6, num_ranks, tail=tail, shuffle=shuffle, counts=counts, shares=shares)
    ranks = [list(Plan(order, 6, Rank(rank, num_ranks), tail).steps(Cursor(epoch))) for rank in range(num_ranks)]
    assert len({len(steps) for steps in ranks}) == 1
    seen = np.zeros(sum(sizes), np.int64)
    for number, step in enumerate(zip(*ranks, strict=True)):
        assert len({len(picks) for picks in step}) == 1
        positions = np.concatenate([picks.positions for picks in step])
        (bucket,) = set(buckets_of(order, positions).tolist())
        is_last = number == len(ranks[0]) - 1
        assert len(step[0]) == shares[bucket] or (is_last and tail is Tail.PAD and 0 < len(step[0]) < shares[bucket])
        np.add.at(seen, positions[np.concatenate([picks.real for picks in step])], 1)
    for bucket, (count, size, share) in enumerate(zip(counts, sizes, shares, strict=True)):
        of_bucket = seen[order.members[order.starts[bucket] : order.starts[bucket + 1]]]
        wanted = count if tail is not Tail.DROP else count // (share * num_ranks) * share * num_ranks
        assert of_bucket.sum() == wanted
        assert of_bucket.max() - of_bucket.min() <= 1
        assert len(of_bucket) == size
    positions = np.arange(len(order), dtype=np.int64)
    found = order(epoch, positions)
    pairs = [
        (one, time) for one, time in zip(found.tolist(), order.occurrences(epoch, positions).tolist(), strict=True) if one >= 0
    ]
    assert len(set(pairs)) == len(pairs)


def test_batches_of_another_number_of_ranks_are_the_same() -> None:
    alone, shared = order_of([40, 40], 8, 1, shares=[8, 2]), order_of([40, 40], 4, 2, shares=[4, 1])
    whole = list(Plan(alone, 8).steps(Cursor(1)))
    ranks = [list(Plan(shared, 4, Rank(rank, 2)).steps(Cursor(1))) for rank in range(2)]
    for one, *both in zip(whole, *ranks, strict=True):
        assert one.positions.tolist() == [position for picks in both for position in picks.positions]
        assert one.after == both[0].after
    assert alone.kind == shared.kind
    assert alone.kind != order_of([40, 40], 4, 2, shares=[4, 2]).kind
