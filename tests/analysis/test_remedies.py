"""Which remedy comes first, and when none does."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from datapipe.analysis.predict.candidates import Candidates
from datapipe.analysis.predict.instructions import Instruction, Snippet
from datapipe.analysis.predict.remedies import NO_REMEDY, NOTHING, RUN_TO_RUN, Remedy, rank_remedies
from datapipe.analysis.predict.replay import Delivery, Setup
from datapipe.analysis.predict.workload import Change, Workload, workload_of
from datapipe.diagnostics.diagnosis import remedies_of
from datapipe.errors import OptionError
from datapipe.instruments.measure.timeline import STEP, Steps

SETUP = Setup(2, 4)
DEEPER = Remedy(
    "deeper", Change(replace(SETUP, depth=16)), Instruction((Snippet("python", "prefetch_factor=8"),), "train.py:3", "now 2")
)
WORKERS = Remedy("workers", Change(Setup(4, 8)))
FASTER = Remedy("faster", Change(production_factor=0.25))


def workload(production_s: float, *, cv: float = 0.0, num: int = 400, synced: bool = False) -> Workload:
    draws = np.random.default_rng(0).normal(1, cv, num).clip(0.1)
    used = np.full(num, 0.010)
    return Workload(production_s * draws, None, np.array([5e-5]), 0.1 * used, used, np.full(num, synced), SETUP)


def test_the_one_that_helps_comes_first() -> None:
    ranking = rank_remedies(workload(0.060, cv=0.2), [DEEPER, WORKERS, FASTER], measured_step_s=0.030)
    assert ranking.best.remedy is FASTER
    assert [one.remedy.name for one in ranking.predictions] == ["faster", "workers", "deeper"]
    by_name = {one.remedy.name: one for one in ranking.predictions}
    assert by_name["workers"].step_s.value == pytest.approx(0.0155, rel=0.06)
    assert by_name["faster"].step_s.value == pytest.approx(0.010, rel=0.02)
    assert by_name["faster"].gain.value == pytest.approx(2 / 3, abs=0.02)
    assert by_name["faster"].starvation.value < 0.02
    assert ranking.misfit is not None
    assert abs(ranking.misfit) < 0.05


def test_the_easier_of_two_that_are_as_good_comes_first() -> None:
    ranking = rank_remedies(workload(0.022), [WORKERS, FASTER])
    assert ranking.best.remedy is WORKERS
    assert rank_remedies(workload(0.022), [FASTER, WORKERS]).best.remedy is FASTER


def test_change_nothing_where_nothing_helps() -> None:
    for made in (workload(0.004), workload(0.019, cv=0.1)):
        ranking = rank_remedies(made, [DEEPER, WORKERS, FASTER])
        assert ranking.best.remedy.name == NOTHING
        assert ranking.best is ranking.now
    assert rank_remedies(workload(0.060), []).best.remedy.name == NOTHING


def test_a_gain_within_the_doubt_is_no_gain() -> None:
    sure = Remedy("sure", Change(production_factor=0.8))
    unsure = Remedy("unsure", Change(production_factor=0.8, production_spread=0.5))
    assert rank_remedies(workload(0.060), [sure]).best.remedy is sure
    ranking = rank_remedies(workload(0.060), [unsure])
    assert ranking.best.remedy.name == NOTHING
    gain = ranking.predictions[0].gain
    assert gain.low < 0 < gain.value < gain.high


def test_a_larger_batch_is_compared_by_what_it_trains() -> None:
    larger = Remedy("larger", Change(batch_factor=4))
    (prediction,) = rank_remedies(workload(0.060), [larger]).predictions
    assert prediction.step_s.value == pytest.approx(0.030, rel=0.02)


def test_dropping_a_sync_helps_where_the_caller_makes_batches() -> None:
    dropped = Remedy("no sync", Change(drops_syncs=True))
    by_caller = replace(workload(0.006, synced=True), setup=Setup(0, 1))
    (prediction,) = rank_remedies(by_caller, [dropped]).predictions
    assert prediction.step_s.value == pytest.approx(0.010, rel=0.02)
    assert prediction.gain.value == pytest.approx(1 - 10 / 16.05, abs=0.02)
    (useless,) = rank_remedies(workload(0.060, synced=True), [dropped]).predictions
    assert useless.gain.value == pytest.approx(0.0, abs=0.02)


def test_names_must_tell_remedies_apart() -> None:
    with pytest.raises(OptionError, match="name"):
        rank_remedies(workload(0.01), [DEEPER, DEEPER])
    with pytest.raises(OptionError, match="change nothing"):
        rank_remedies(workload(0.01), [Remedy(NOTHING, Change())])


def test_a_ranking_is_json() -> None:
    found = remedies_of(rank_remedies(workload(0.060), [DEEPER]), Candidates(), starved=True)
    told = json.loads(json.dumps(msgspec.to_builtins(found), allow_nan=False))
    assert {name: told["within_noise"][0][name] for name in ("how", "code", "where", "note")} == {
        "how": "prefetch_factor=8 at train.py:3; now 2",
        "code": [{"language": "python", "text": "prefetch_factor=8"}],
        "where": "train.py:3",
        "note": "now 2",
    }
    assert told["measured_step_s"] is None


def steps_of(num: int = 100, *, has_device: bool = True) -> Steps:
    steps = np.zeros(num, STEP)
    steps["host_wait_s"], steps["host_work_s"], steps["num_ready"] = 0.020, 0.008, np.arange(num) % 2
    steps["gap_s"], steps["work_s"], steps["copy_s"] = (0.015, 0.009, 0.001) if has_device else (np.nan,) * 3
    steps["sync_s"] = 0.006 if has_device else np.nan
    steps["is_first"][0] = True
    return steps


def test_a_workload_is_taken_from_steps() -> None:
    made = workload_of(steps_of(), SETUP, production_s=np.full(50, 0.03), production_cpu_s=np.full(50, 0.01))
    assert made is not None
    assert len(made.host_s) == 99
    assert made.host_s == pytest.approx(np.full(99, 0.002))
    assert made.work_s == pytest.approx(np.full(99, 0.010))
    assert made.is_synced.all()
    assert made.delivery_s == pytest.approx(np.full(50, 0.020))  # of the batches that lay ready


def test_without_a_device_the_caller_is_what_works() -> None:
    made = workload_of(steps_of(has_device=False), Setup(0, 1))
    assert made is not None
    assert made.production_s == pytest.approx(np.full(99, 0.020))
    assert not made.work_s.any()
    ranking = rank_remedies(made, [Remedy("workers", Change(Setup(4, 8)))])
    assert ranking.now.step_s.value == pytest.approx(0.028, rel=0.01)
    assert ranking.predictions[0].step_s.value == pytest.approx(0.008, rel=0.02)


def test_what_was_not_measured_is_not_replayed() -> None:
    assert workload_of(steps_of(), SETUP) is None
    assert workload_of(steps_of(8), SETUP, production_s=np.full(50, 0.03)) is None
    with pytest.raises(OptionError, match="steps"):
        replace(workload(0.01), host_s=np.zeros(3))
    with pytest.raises(OptionError, match="CPU times"):
        replace(workload(0.01), production_cpu_s=np.zeros(3))
    with pytest.raises(OptionError, match="above 0"):
        Change(production_factor=0)


def test_batches_as_they_are_made_help_beside_a_slow_worker() -> None:
    """Worker 0 takes 60 ms for a batch, worker 1 takes 20: in order the pair gives 2 in 60, as they are made 4."""
    made_by = np.arange(400) % 2
    base = replace(workload(0.020), made_by=made_by, production_s=np.where(made_by == 0, 0.060, 0.020))
    base = replace(base, setup=Setup(2, 4))
    free = Remedy("in_order=False", Change(Setup(2, 4, Delivery.COMPLETION)))
    ranking = rank_remedies(base, [free])
    assert ranking.now.step_s.value == pytest.approx(0.030, rel=0.03)
    assert ranking.best.remedy is free
    assert ranking.best.step_s.value == pytest.approx(0.015, rel=0.05)
    few_cores = replace(base, production_cpu_s=np.full(400, 0.001), setup=replace(base.setup, num_cores=2.0))
    crowded = rank_remedies(few_cores, [Remedy("in_order=False", Change(Setup(2, 4, Delivery.COMPLETION, 2.0)))])
    assert crowded.best.step_s.value == pytest.approx(0.015, rel=0.05)  # what the slow worker will compute delays nobody now
    even = rank_remedies(replace(base, production_s=np.full(400, 0.040)), [free])
    assert even.best.remedy.name == NOTHING


def test_batches_as_they_are_made_help_against_rare_stalls() -> None:
    """One batch of 20 takes 400 ms more: in order the training waits for it, as they are made it goes on with the others."""
    making = np.full(400, 0.008)
    making[3::20] += 0.400
    base = replace(workload(0.008), production_s=making, work_s=np.zeros(400), host_s=np.full(400, 0.010))
    free = Remedy("in_order=False", Change(Setup(2, 4, Delivery.COMPLETION)))
    ranking = rank_remedies(base, [DEEPER, free])
    assert ranking.now.step_s.value == pytest.approx(0.0285, rel=0.05)
    assert ranking.best.remedy is free
    assert ranking.best.step_s.value == pytest.approx(0.0147, rel=0.05)


def test_a_shorter_step_that_is_not_sure_does_not_hide_one_that_is() -> None:
    unsure = Remedy("unsure", Change(production_factor=0.3, production_spread=1.5))
    sure = Remedy("sure", Change(production_factor=0.6))
    ranking = rank_remedies(workload(0.060), [unsure, sure])
    assert [one.remedy for one in ranking.predictions] == [unsure, sure]
    assert [one.remedy for one in ranking.worth_it] == [sure]
    assert ranking.best.remedy is sure


def test_intervals_hold_what_differs_from_run_to_run() -> None:
    """Steps that are all alike say nothing of the next run: nine of ten runs that differ by 4% must lie within."""
    (prediction,) = rank_remedies(workload(0.060), [FASTER], measured_step_s=0.030).predictions
    runs = prediction.step_s.value * np.random.default_rng(1).normal(1, RUN_TO_RUN, 10_000)
    held = (prediction.step_s.low <= runs) & (runs <= prediction.step_s.high)
    assert 0.9 < held.mean() < 0.99
    assert prediction.least_gain == pytest.approx(prediction.gain.value, abs=0.01)  # the same runs are compared
    assert prediction.gain.low < prediction.gain.value - 0.02
    wide = rank_remedies(workload(0.060), [Remedy("unsure", Change(production_factor=0.8, production_spread=0.3))]).predictions[0]
    assert wide.step_s.high - wide.step_s.low > 2 * (prediction.step_s.high - prediction.step_s.low)


def test_intervals_are_wider_where_workers_take_every_core() -> None:
    """Two workers that compute on two busy cores: predicted 82.9 ms, and a run took 92.4 ms."""
    busy = replace(workload(0.160), setup=Setup(1, 2, num_cores=2.0), work_s=np.zeros(400), host_s=np.full(400, 0.002))
    two = Remedy("two", Change(Setup(2, 4, num_cores=2.0)))

    def predicted(made: Workload, remedy: Remedy) -> tuple[float, float]:
        (one,) = rank_remedies(made, [remedy]).predictions
        return one.step_s.high / one.step_s.value, one.gain.value - one.gain.low

    high, below = predicted(busy, two)
    assert 82.9 * high > 92.4
    spare, spare_below = predicted(
        replace(busy, setup=Setup(1, 2, num_cores=8.0)), Remedy("two", Change(Setup(2, 4, num_cores=8.0)))
    )
    assert spare < 1.10
    assert below > 1.5 * spare_below
    waiting = replace(busy, production_cpu_s=np.full(400, 0.010))  # neither core is taken while workers wait
    assert predicted(waiting, two)[0] < 1.10


def test_a_gain_within_the_noise_of_runs_is_not_recommended() -> None:
    """The same in every step of one run, 5% shorter is less than one run differs from the next."""
    small = Remedy("small", Change(production_factor=0.95))
    ranking = rank_remedies(workload(0.060), [small], measured_step_s=0.030)
    assert ranking.best.remedy is small
    assert ranking.best.gain.low < 0 < ranking.best.least_gain
    found = remedies_of(ranking, Candidates(remedies=[small]), starved=True)
    assert found.best == NO_REMEDY
    assert found.predictions == ()
    assert [one.name for one in found.within_noise] == ["small"]
    assert remedies_of(ranking, Candidates(remedies=[small]), starved=False).best == NOTHING


def test_a_surer_gain_is_best_where_the_easier_one_is_not_sure() -> None:
    easier, better = Remedy("easier", Change(production_factor=0.93)), Remedy("better", Change(production_factor=0.915))
    ranking = rank_remedies(workload(0.060), [easier, better], measured_step_s=0.030)
    assert ranking.best.remedy is easier
    found = remedies_of(ranking, Candidates(remedies=[easier, better]), starved=True)
    assert found.best == "better"
    assert [one.name for one in found.predictions] == ["better"]
    assert [one.name for one in found.within_noise] == ["easier"]
