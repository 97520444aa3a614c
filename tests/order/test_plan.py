"""Plans: every sample once over all ranks, equal steps, and resumption from any place."""

from __future__ import annotations

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import OptionError, StateError
from datapipe.order.plan import Cursor, Picks, Plan, Rank, Tail
from datapipe.order.sample_order import SequentialOrder, ShuffledOrder

tails = st.sampled_from(list(Tail))


def test_a_batch_is_not_filled_up_without_bounds() -> None:
    with pytest.raises(OptionError, match="batch_size is 2147483648, to which tail='mask' fills 6 samples up; pass fewer"):
        Plan(SequentialOrder(6), 2**31, tail=Tail.MASK)
    assert Plan(SequentialOrder(6), 2**31).num_steps == 1


def plans(num_samples: int, batch_size: int, world_size: int, tail: Tail) -> list[Plan]:
    """One plan for each rank."""
    order = ShuffledOrder(num_samples, seed=5)
    return [Plan(order, batch_size, Rank(rank, world_size), tail) for rank in range(world_size)]


def run(ranks: list[Plan], start: Cursor, *, steps: int | None = None) -> tuple[list[list[Picks]], Cursor]:
    """What each rank picks in that many steps (None: to the end of the epoch), and where that leads."""
    picked = [list(plan.steps(start)) for plan in ranks]
    if steps is not None:
        picked = [picks[:steps] for picks in picked]
    ends = {picks[-1].after if picks else start for picks in picked}
    assert len(ends) == 1, "ranks disagree about where they stand"
    return picked, ends.pop()


def real_positions(picked: list[list[Picks]]) -> list[int]:
    return [int(p) for picks in picked for pick in picks for p in pick.positions[pick.real]]


@quick
@given(
    num_samples=st.integers(1, 400),
    batch_size=st.integers(1, 40),
    world_size=st.integers(1, 9),
    tail=tails,
    epoch=st.integers(0, 9),
)
def test_every_sample_exactly_once(num_samples: int, batch_size: int, world_size: int, tail: Tail, epoch: int) -> None:
    ranks = plans(num_samples, batch_size, world_size, tail)
    picked, end = run(ranks, Cursor(epoch))
    full, left = divmod(num_samples, batch_size * world_size)
    assert {plan.num_steps for plan in ranks} == {len(picks) for picks in picked} == {full + (left > 0 and tail is not Tail.DROP)}
    real = real_positions(picked)
    assert len(set(real)) == len(real)
    if tail is Tail.DROP:
        assert len(real) == full * batch_size * world_size
    else:
        assert sorted(real) == list(range(num_samples))
        assert end == Cursor(epoch, num_samples)
    assert end.epoch == epoch
    assert all(plan.step_at(end) == plan.num_steps for plan in ranks)
    for picks in picked:
        assert [pick.step for pick in picks] == list(range(len(picks)))
        for pick in picks:
            assert pick.positions.min() >= 0
            assert pick.positions.max() < num_samples
            assert len(pick.real) == len(pick.positions)


@quick
@given(num_samples=st.integers(1, 400), batch_size=st.integers(1, 40), world_size=st.integers(1, 9), tail=tails)
def test_repeats_and_lengths(num_samples: int, batch_size: int, world_size: int, tail: Tail) -> None:
    picked, _ = run(plans(num_samples, batch_size, world_size, tail), Cursor())
    lengths = np.array([[len(pick.positions) for pick in picks] for picks in picked])  # (ranks, steps)
    repeats = sum(int((~pick.real).sum()) for picks in picked for pick in picks)
    assert (lengths == lengths[:1]).all(), "a step's batches differ in length between ranks"
    left = num_samples % (batch_size * world_size)
    if tail is Tail.PAD and left:
        assert (lengths[:, :-1] == batch_size).all()
        assert lengths[0, -1] == -(-left // world_size)
        assert repeats == -left % world_size
    else:
        assert (lengths == batch_size).all()
        assert repeats == (batch_size * world_size - left if tail is Tail.MASK and left else 0)


@quick
@given(data=st.data(), num_samples=st.integers(1, 600), world_sizes=st.tuples(*[st.integers(1, 6)] * 3), tail=tails)
def test_resuming_on_other_ranks_loses_and_repeats_nothing(
    data: st.DataObject, num_samples: int, world_sizes: tuple[int, int, int], tail: Tail
) -> None:
    """One epoch in three parts, each on another number of ranks with the same global batch."""
    global_batch = int(np.lcm.reduce(world_sizes)) * data.draw(st.integers(1, 3))
    cursor, seen = Cursor(2), []
    for part, world_size in enumerate(world_sizes):
        ranks = plans(num_samples, global_batch // world_size, world_size, tail)
        steps = None if part == 2 else data.draw(st.integers(0, 4))
        picked, cursor = run(ranks, cursor, steps=steps)
        seen += real_positions(picked)
    uninterrupted, end = run(plans(num_samples, global_batch, 1, tail), Cursor(2))
    assert sorted(seen) == sorted(real_positions(uninterrupted))
    assert cursor == end


@quick
@given(num_samples=st.integers(1, 300), batch_size=st.integers(1, 20), world_size=st.integers(1, 4), tail=tails, data=st.data())
def test_a_step_is_the_same_from_wherever_one_starts(
    num_samples: int, batch_size: int, world_size: int, tail: Tail, data: st.DataObject
) -> None:
    plan = plans(num_samples, batch_size, world_size, tail)[data.draw(st.integers(0, world_size - 1))]
    whole = list(plan.steps(Cursor(1)))
    stop = data.draw(st.integers(0, len(whole)))
    start = whole[stop - 1].after if stop else Cursor(1)
    rest = list(plan.steps(start))
    assert [(p.step, p.after, p.positions.tolist(), p.real.tolist()) for p in rest] == [
        (p.step, p.after, p.positions.tolist(), p.real.tolist()) for p in whole[stop:]
    ]


@quick
@given(num_samples=st.integers(1, 200), batch_size=st.integers(1, 20), world_size=st.integers(1, 5))
def test_ranks_together_make_the_global_batch(num_samples: int, batch_size: int, world_size: int) -> None:
    """Full steps hold the same samples, in the same order, as one rank with all of it would have."""
    picked, _ = run(plans(num_samples, batch_size, world_size, Tail.DROP), Cursor())
    alone, _ = run(plans(num_samples, batch_size * world_size, 1, Tail.DROP), Cursor())
    for step, pick in enumerate(alone[0]):
        assert np.concatenate([picks[step].positions for picks in picked]).tolist() == pick.positions.tolist()


@pytest.mark.parametrize("num_samples", [0, 1, 2, 3])
@pytest.mark.parametrize("tail", list(Tail))
def test_fewer_samples_than_ranks(num_samples: int, tail: Tail) -> None:
    picked, _ = run(plans(num_samples, 2, 4, tail), Cursor())
    lengths = {tuple(len(pick.positions) for pick in picks) for picks in picked}
    expected = () if tail is Tail.DROP or not num_samples else (1 if tail is Tail.PAD else 2,)
    assert lengths == {expected}
    assert sorted(real_positions(picked)) == (list(range(num_samples)) if expected else [])


def test_large_epochs_need_no_memory() -> None:
    plan = Plan(ShuffledOrder(10**12, seed=0), 256, Rank(3, 8))
    last = plan.picks_of(plan.span(0, plan.num_steps - 1))
    assert plan.num_steps == -(-(10**12) // 2048)
    assert last.after == Cursor(0, 10**12)
    assert last.positions.max() < 10**12


@pytest.mark.parametrize("samples_done", [1, 7, 11])
def test_a_place_between_steps_is_refused_with_the_values(samples_done: int) -> None:
    plan = Plan(SequentialOrder(30), 4, Rank(0, 2))
    with pytest.raises(StateError, match=r"4 x 2"):
        next(plan.steps(Cursor(0, samples_done)))


def test_a_place_at_the_end_in_mid_step_is_the_end() -> None:
    """After the last, short step the place is the number of samples, a multiple of nothing."""
    plan = Plan(SequentialOrder(30), 4, Rank(0, 2))
    assert list(plan.steps(Cursor(0, 30))) == []
    assert plan.step_at(Cursor(0, 30)) == plan.num_steps
    assert plan.step_at(Cursor(0, 24)) < plan.num_steps


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0), (5, 4)])
def test_impossible_ranks_are_refused(rank: int, world_size: int) -> None:
    with pytest.raises(OptionError, match=f"rank {rank}"):
        Rank(rank, world_size)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(OptionError, match="batch_size is 0"):
        Plan(SequentialOrder(3), 0)


def test_a_state_resumes_where_the_step_divides_what_is_done() -> None:
    for world_size in (1, 2, 4, 8, 16):
        assert Plan(SequentialOrder(100), 1, Rank(0, world_size)).step_at(Cursor(0, 16)) == 16 // world_size
    with pytest.raises(
        StateError, match="1 x 3; resume with the values the state was saved under, or others whose product divides"
    ):
        Plan(SequentialOrder(100), 1, Rank(0, 3)).step_at(Cursor(0, 16))
