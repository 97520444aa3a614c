"""The replay: closed forms, torch's order, and a simulation that shares no line with it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.diagnostics import runs
from benchmarks.diagnostics.devices import VirtualWorld
from benchmarks.diagnostics.virtual_loader import BatchCost, VirtualLoader
from datapipe.analysis.predict.replay import Course, Delivery, Replayed, Setup, replay
from datapipe.errors import OptionError
from datapipe.instruments.measure.bracket import ThreadBracket

NUM = 1200


def course(production: Any, *, work: float = 0.010, host: float = 0.001, synced: bool = False, cpu: float = 0.0) -> Course:
    """One replicate; `cpu`: which share of making a batch is computing."""
    making = np.broadcast_to(np.asarray(production, np.float64), (1, NUM))
    one = np.ones((1, 1))
    return Course(making * (1 - cpu), making * cpu, one * 5e-5, one * host, one * work, np.full((1, 1), synced), host)


def step_s(replayed: Replayed) -> float:
    return float(replayed.step_s[0])


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("production", [0.002, 0.015, 0.060])
@pytest.mark.parametrize("delivery", list(Delivery))
def test_even_batches_take_what_the_slower_side_takes(num_workers: int, production: float, delivery: Delivery) -> None:
    setup = Setup(num_workers, 4 * num_workers, delivery)
    replayed = replay(course(production), setup, num_settling=400)
    assert step_s(replayed) == pytest.approx(max(0.010, production / num_workers), rel=0.01)
    expected = max(0.0, 1 - 0.010 / step_s(replayed))
    assert float(replayed.starvation[0]) == pytest.approx(expected, abs=0.01)


def test_without_workers_the_caller_makes_batches() -> None:
    alone = Setup(0, 1)
    assert step_s(replay(course(0.005), alone, num_settling=400)) == pytest.approx(0.010, rel=0.01)
    assert step_s(replay(course(0.030), alone, num_settling=400)) == pytest.approx(0.03105, rel=0.01)
    synced = replay(course(0.005, synced=True), alone, num_settling=400)
    assert step_s(synced) == pytest.approx(0.01505, rel=0.01)
    assert float(synced.gap_s[0]) == pytest.approx(0.00505, rel=0.01)


def test_jitter_costs_even_where_supply_equals_demand() -> None:
    """Why it is not max(): four workers, just fast enough on average."""
    draws = np.random.default_rng(0)
    for cv, least in ((0.3, 1.02), (1.0, 1.15)):
        spread = np.log(1 + cv**2)
        making = 0.040 * draws.lognormal(-spread / 2, np.sqrt(spread), (1, NUM))
        making *= 0.040 / making.mean()
        assert step_s(replay(course(making), Setup(4, 8), num_settling=200)) > least * 0.010


def test_torch_gives_every_nth_batch_to_the_same_worker() -> None:
    making = np.full(NUM, 0.010)
    making[::4] = 0.080  # all of them worker 0's
    round_robin = step_s(replay(course(making), Setup(4, 8), num_settling=200))
    first_free = step_s(replay(course(making), Setup(4, 8, Delivery.COMPLETION), num_settling=200))
    assert round_robin == pytest.approx(0.020, rel=0.02)
    assert first_free < 0.8 * round_robin


def test_few_cores_bound_what_workers_bring() -> None:
    busy = course(0.080, cpu=1.0)
    assert step_s(replay(busy, Setup(8, 16), num_settling=200)) == pytest.approx(0.010, rel=0.01)
    for num_workers in (4, 8):
        taken = step_s(replay(busy, Setup(num_workers, 2 * num_workers, num_cores=2), num_settling=200))
        assert taken == pytest.approx(0.0405, rel=0.05)
    waiting = course(0.080, cpu=0.1)
    assert step_s(replay(waiting, Setup(8, 16, num_cores=2), num_settling=200)) == pytest.approx(0.010, rel=0.03)


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_replay_agrees_with_an_event_by_event_simulation(delivery: Delivery, synced: bool, seed: int) -> None:
    draws = np.random.default_rng(seed)
    setup = Setup(int(draws.integers(1, 5)), int(draws.integers(1, 12)), delivery)
    making = draws.gamma(2.0, float(draws.choice([0.004, 0.010, 0.030])), NUM)
    world = VirtualWorld()
    loader = VirtualLoader(world, setup, lambda number: BatchCost(float(making[number]), 0.0, 5e-5), num_batches=NUM)
    for _ in runs.loop(world, loader, ThreadBracket(world), syncs=synced):
        pass
    ends = world.log.step_ends()
    simulated = float(ends[-1] - ends[0]) / (NUM - 1)
    made = course(making, synced=synced)
    assert step_s(replay(made, setup)) == pytest.approx(simulated, rel=0.02)


def test_replicates_do_not_mix() -> None:
    making = np.random.default_rng(0).gamma(2.0, 0.010, (5, NUM))
    setup = Setup(2, 4)
    together = replay(replace(course(0.0), stall_s=making), setup, num_settling=100)
    apart = [step_s(replay(course(row), setup, num_settling=100)) for row in making]
    assert together.step_s == pytest.approx(apart)


def test_two_thousand_batches_take_a_moment() -> None:
    making = np.random.default_rng(0).gamma(2.0, 0.010, (1, 2000))
    made = replace(course(0.0), stall_s=making, cpu_s=np.zeros((1, 1)))
    took = []
    for _ in range(5):
        start = time.perf_counter()
        replay(made, Setup(4, 8))
        took.append(time.perf_counter() - start)
    assert min(took) < 0.3


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(OptionError, match="workers"):
        Setup(-1, 1)
    with pytest.raises(OptionError, match="in progress"):
        Setup(2, 0)
    with pytest.raises(OptionError, match="num_cores"):
        Setup(2, 4, num_cores=0)
    with pytest.raises(OptionError, match="num_settling"):
        replay(course(0.01), Setup(2, 4), num_settling=NUM)
