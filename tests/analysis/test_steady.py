"""Where the steady state begins."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from datapipe.analysis.judge.steady import find_steady, settles_at
from datapipe.analysis.judge.verdict import VerdictKind, figures_of, judge
from datapipe.instruments.measure.timeline import STEP, Steps

RNG = np.random.default_rng


def made(gaps: NDArray[np.float64], *, pass_id: int = 0, num_ready: NDArray[np.int_] | int = -1) -> Steps:
    steps = np.zeros(len(gaps), STEP)
    steps["gap_s"], steps["work_s"], steps["host_wait_s"] = gaps, 0.010, gaps
    steps["pass_id"], steps["num_ready"] = pass_id, num_ready
    steps["is_first"][0] = True
    return steps


@pytest.mark.parametrize("cv", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("length", [5, 40, 150])
def test_a_buffer_that_runs_out_is_cut_off(length: int, cv: float) -> None:
    """Nothing to wait for while it lasts, a wait in every step after that."""
    jitter = RNG(length).normal(1, cv, 400).clip(0)
    gaps = np.where(np.arange(400) < length, 0.0, 0.008 * jitter)
    start = settles_at(gaps + 0.010)
    assert start is not None
    assert length - 5 <= start <= length + 40
    assert gaps[start:].mean() == pytest.approx(gaps[length:].mean(), rel=0.05)


def test_a_shortage_that_shows_in_some_steps_only() -> None:
    draws = RNG(1).random(600)
    gaps = np.where((np.arange(600) >= 200) & (draws < 0.4), 0.015, 0.0)
    start = settles_at(gaps + 0.010)
    assert start is not None
    assert 170 <= start <= 280


def test_a_slow_beginning_is_cut_off_however_short() -> None:
    for slow in ([4.0], [9.0, 0.5], [30.0, 2.0, 1.0, 0.1]):
        times = np.concatenate([slow, RNG(0).normal(0.011, 0.0005, 300)])
        start = settles_at(times)
        assert start is not None
        assert len(slow) <= start <= len(slow) + 30


def test_rare_stalls_are_part_of_the_steady_state() -> None:
    for where in ([150], [20, 120, 290], list(range(10, 400, 90))):
        times = np.full(400, 0.010)
        times[where] = 2.0
        assert settles_at(times) == 0
    heavy = RNG(3).lognormal(0, 1, 500)
    start = settles_at(heavy)
    assert start is not None
    assert start <= 100


def test_equal_and_periodic_steps_are_settled_from_the_start() -> None:
    assert settles_at(np.full(100, 0.0123)) == 0
    assert settles_at(np.full(100, 0.0123) + RNG(0).normal(0, 1e-9, 100)) == 0
    assert settles_at(np.tile([0.01, 0.01, 0.01, 0.05], 50)) == 0


def test_what_does_not_settle_is_not_steady() -> None:
    assert settles_at(np.where(np.arange(200) < 140, 0.010, 0.020)) is None
    assert settles_at(np.linspace(0.010, 0.030, 400)) is None
    assert settles_at(np.full(10, 0.010)) is None


def test_a_drift_too_small_to_matter_is_settled() -> None:
    assert settles_at(np.linspace(0.0100, 0.0101, 200)) is not None


def test_a_buffer_seen_to_run_out_is_not_steady_though_nothing_waits_yet() -> None:
    falling = np.linspace(64, 24, 200).astype(int)
    assert not find_steady(made(np.zeros(200), num_ready=falling)).is_settled
    full_to_the_end = np.minimum(64, 200 - np.arange(200))  # of the pass: nothing is added any more
    assert find_steady(made(np.zeros(200), num_ready=full_to_the_end)).is_settled
    assert find_steady(made(np.zeros(200))).is_settled


def test_of_passes_that_are_too_short_the_second_half_of_all_is_judged() -> None:
    gaps = RNG(5).normal(0.03, 0.003, (4, 16))
    steps = np.concatenate([made(one, pass_id=number) for number, one in enumerate(gaps)])
    steady = find_steady(steps)
    assert (steady.is_settled, steady.num_first, steady.chosen.sum(), steady.num_unsettled) == (False, 4, 30, 30)
    assert set(steps["pass_id"][steady.chosen]) == {2, 3}
    verdict = judge(figures_of(steps))
    assert verdict.kind is VerdictKind.DATA_BOUND
    assert verdict.starvation is not None
    assert verdict.starvation.value == pytest.approx(0.75, abs=0.03)
    assert "its passes are too short to tell whether it has settled" in verdict.reason
    busy = np.concatenate([made(one, pass_id=number) for number, one in enumerate(gaps * 0)])
    unknown = judge(figures_of(busy))
    assert unknown.kind is VerdictKind.NOT_ENOUGH, "waiting may begin later"
    assert unknown.reason.startswith(
        "its passes are too short to tell whether the loop has settled; in the second half of all of them 0.0%"
    )
    few = judge(figures_of(steps[:33]))
    assert (few.figures.is_settled, few.figures.num_steps, few.figures.num_unsettled) == (False, 0, 30)
    assert "a pass of 17 steps is needed, or 32 steps in all that clearly wait; run longer" in few.reason


def test_passes_are_looked_at_one_by_one_and_evaluation_not_at_all() -> None:
    late = np.where(np.arange(300) < 50, 0.0, 0.010)
    evaluation = made(np.full(100, 9.0), pass_id=1)
    evaluation["is_evaluation"] = True
    short = made(np.full(8, 0.5), pass_id=2)
    steps = np.concatenate([made(late), evaluation, short, made(late, pass_id=3)])
    steady = find_steady(steps)
    assert steady.num_first == 3
    assert steady.num_evaluation == 100
    assert steady.chosen.sum() + steady.num_unsettled + steady.num_first + steady.num_evaluation == len(steps)
    assert set(steps["pass_id"][steady.chosen]) == {0, 3}
    assert steps["gap_s"][steady.chosen].mean() == pytest.approx(0.010, rel=0.02)
    assert not find_steady(steps[:0]).is_settled
