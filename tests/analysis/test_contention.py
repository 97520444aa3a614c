"""Workers that wait for each other: what was tried decides what more of them would gain, and what was not is doubted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from diagnosis_processes import COMMAND, process

from datapipe.analysis.judge.analysis import analyze
from datapipe.analysis.predict.remedies import NO_REMEDY
from datapipe.analysis.predict.replay import Setup
from datapipe.analysis.predict.workload import Workload, contention_of
from datapipe.diagnostics.diagnosis import diagnose, ranked_again, with_applied
from datapipe.diagnostics.document import Document, Outlook, Remedies
from datapipe.diagnostics.report.screen import screen
from datapipe.instruments.trials.choosing import worker_counts
from datapipe.instruments.trials.results import Trials

MS = 1e-3
NONE = {"": "not asked for"}


def waiting(stall_s: float, *, num_workers: int = 2) -> Workload:
    made, used = np.full(100, stall_s + 1 * MS), np.full(100, 5 * MS)
    return Workload(made, np.full(100, 1 * MS), np.array([5e-5]), used, 0 * used, used > 1, Setup(num_workers, 4, num_cores=8))


def tried(**stall_ms: float) -> dict[str, Any]:
    levels = {num.removeprefix("w"): {"stall_s": ms * MS, "cpu_s": MS, "spread": 0.05} for num, ms in stall_ms.items()}
    return {"levels": levels}


def diagnosed(scaling: dict[str, Any] | None) -> Document:
    found = process(make_s=30 * MS, work_s=10 * MS, cpu=0.05)
    return diagnose([found], COMMAND, try_out=lambda _: Trials(reasons=NONE, scaling=scaling)).document


def outlook(found: Remedies, name: str) -> Outlook:
    return next(one for one in (*found.predictions, *found.within_noise) if one.name == name)


def test_waiting_is_read_off_between_what_was_tried() -> None:
    found = contention_of(waiting(20 * MS), tried(w2=20, w4=40, w8=80))
    assert found.added_s(4) == pytest.approx(20 * MS)
    assert found.added_s(6) == pytest.approx(40 * MS)
    assert found.added_s(1) == 0.0
    assert found.worst_added_s(4) is None
    assert found.grows
    assert not contention_of(waiting(20 * MS), tried(w2=20, w4=21, w8=20)).grows


def test_what_was_tried_elsewhere_than_the_run_proves_nothing() -> None:
    """A disk's files were in memory when they were read again."""
    found = contention_of(waiting(20 * MS), tried(w2=0.1, w4=0.1))
    assert (found.levels, found.grows) == ((), False)
    assert "waited 0.1 ms when it was tried and 20.0 ms in the run" in (found.why_unknown or "")
    assert found.worst_added_s(4) == pytest.approx(20 * MS)
    assert found.worst_added_s(2) is None
    unknown = contention_of(waiting(20 * MS), {"reason": "its code failed"})
    assert unknown.why_unknown == "its code failed"
    assert contention_of(waiting(0.05 * MS), None).why_unknown is None  # it hardly waits


def test_a_lock_makes_more_workers_useless_and_is_told() -> None:
    """A batch of 30 ms computes for 4.35; with n workers each waits until all the others had the lock."""
    found = diagnosed(tried(w1=25.65, w4=30 * 4 - 4.35, w8=30 * 8 - 4.35))
    assert found.remedies is not None
    assert found.remedies.best == NO_REMEDY
    more = outlook(found.remedies, "num_workers=4")
    assert more.step_s.value == pytest.approx(30 * MS, rel=0.05)
    assert "Workers wait for each other" in screen(found)
    assert "236 ms with 8" in screen(found)


def test_workers_that_wait_each_for_itself_are_recommended_as_before() -> None:
    found = diagnosed(tried(w1=27, w4=27.5, w8=27))
    assert found.remedies is not None
    assert found.remedies.best == "num_workers=4"
    best = outlook(found.remedies, "num_workers=4")
    assert best.step_s.high < 13 * MS
    assert "not known" not in (best.note or "")
    assert "Workers wait for each other" not in screen(found)


def test_without_a_trial_the_interval_reaches_to_no_gain() -> None:
    found = diagnosed(None)
    assert found.remedies is not None
    assert found.remedies.best == "num_workers=4"
    best = outlook(found.remedies, "num_workers=4")
    assert best.step_s.high > 27 * MS
    assert best.gain is not None
    assert best.gain.low < 0.15 < best.gain.value
    assert "if workers do not wait for each other, which is not known: it was not tried" in (best.note or "")


def test_a_remedy_that_gained_nothing_is_not_recommended_any_more() -> None:
    before = diagnosed(None)
    assert before.remedies is not None
    assert before.remedies.measured_step_s is not None
    chosen = outlook(before.remedies, "num_workers=4")
    after = with_applied(before, chosen, [analyze(process(make_s=30 * MS, work_s=10 * MS, cpu=0.05))], exit_code=0)
    assert after.remedies is not None
    assert after.remedies.best == NO_REMEDY
    assert "it gained nothing when it was applied" in (outlook(after.remedies, "num_workers=4").refuted or "")
    assert "num_workers=4 gained nothing" in (outlook(after.remedies, "num_workers=8").refuted or "")
    shown = screen(after)
    assert "It gained nothing and is no longer recommended" in shown
    failed = with_applied(before, chosen, [], exit_code=3)
    assert failed.remedies == before.remedies


def test_a_remedy_that_gained_less_comes_after_the_better_ones() -> None:
    before = diagnosed(tried(w1=27, w4=27, w8=27)).remedies
    assert before is not None
    now_s = before.measured_step_s or 0.0
    after = ranked_again(before, "num_workers=4", now_s * 0.8)
    assert outlook(after, "num_workers=4").gain is not None
    assert after.best == "num_workers=8"
    assert after.predictions[0].name == "num_workers=8"
    assert outlook(after, "num_workers=4").step_s.value == pytest.approx(now_s * 0.8)


def test_numbers_of_workers_to_try() -> None:
    assert worker_counts(2, 2, waits=True) == [1, 4, 8]
    assert worker_counts(0, 2, waits=False) == [1, 2]
    assert worker_counts(8, 2, waits=False) == [1, 2, 4]


def test_what_can_be_done_by_hand_comes_with_its_bound() -> None:
    found = diagnosed(tried(w1=27, w4=27.5, w8=27))
    shown = " ".join(screen(found).split())
    assert "By hand: read (at most 67% shorter): " in shown or "By hand: read (at most 66% shorter): " in shown
