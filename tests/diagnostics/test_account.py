"""Where a whole run's time went: parts that add up, loaders apart, and what keeping workers would save."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis_processes import FACTS, process

from datapipe.analysis.judge.analysis import analyze
from datapipe.diagnostics.details import account_of, details_of, savings_of
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.timeline import STEP, Steps

EPOCHS, STEPS, FIRST_S, WAIT_S, WORK_S = 4, 10, 1.5, 0.002, 0.010
VALIDATION, VALIDATION_WAIT_S, PAUSE_S = 5, 0.2, 0.3


def rows() -> tuple[Steps, int]:
    """Short epochs whose workers start again, each followed by a validation and a pause; and the end of the last one."""
    found, now = [], 2.0
    for epoch in range(EPOCHS):
        for loader, num in ((0, STEPS), (1, VALIDATION)):
            for step in range(num):
                wait_s = VALIDATION_WAIT_S if loader else FIRST_S if step == 0 else WAIT_S
                row = np.zeros(1, STEP)
                row["start_ns"], row["pass_id"], row["loader"] = int(now * 1e9), 2 * epoch + loader, loader
                row["host_wait_s"], row["host_work_s"], row["gap_s"], row["work_s"] = wait_s, WORK_S, np.nan, np.nan
                row["is_first"], row["is_evaluation"] = step == 0, loader == 1
                found.append(row)
                now += wait_s + WORK_S
        now += PAUSE_S
    return np.concatenate(found), int(now * 1e9)


def run(**facts: object) -> Process:
    steps, ended_ns = rows()
    loaders = {0: replace(FACTS, num_workers=2, **facts), 1: replace(FACTS, key=1, num_workers=0)}
    return replace(process(make_s=0.01, work_s=0.01), steps=steps, loaders=loaders, started_ns=0, ended_ns=ended_ns)


def test_the_parts_add_up_to_the_run() -> None:
    found = account_of(run())
    assert found is not None
    assert sum(found.parts.values()) == pytest.approx(found.wall_s)
    assert found.parts == pytest.approx(
        {
            "start-up": 2.0,
            "first batches": EPOCHS * FIRST_S,
            "waiting for data": EPOCHS * (STEPS - 1) * WAIT_S,
            "training steps": EPOCHS * STEPS * WORK_S,
            "validation": EPOCHS * VALIDATION * (VALIDATION_WAIT_S + WORK_S),
            "between passes": EPOCHS * PAUSE_S,
        },
        abs=1e-6,
    )
    assert [(one.id, one.is_evaluation, one.num_passes) for one in found.loaders] == [(0, False, 4), (1, True, 4)]


def test_keeping_workers_saves_the_start_of_every_later_pass() -> None:
    started = run()
    account = account_of(started)
    assert account is not None
    (saving,) = savings_of(started, account, 0.1)
    assert saving.saved_s == pytest.approx((EPOCHS - 1) * (FIRST_S - 0.1))
    assert saving.gain == pytest.approx(saving.saved_s / account.wall_s)
    assert savings_of(run(persistent_workers=True), account, 0.1) == []
    assert savings_of(started, account, 1.6) == [], "a first batch that takes so long is no start of workers"


def test_a_loader_that_is_made_anew_for_each_epoch_is_one_loader() -> None:
    steps, ended_ns = rows()
    training = steps["loader"] == 0
    steps["loader"][training] = 10 + steps["pass_id"][training]
    made = {key: replace(FACTS, key=key, num_workers=2, site="train.py:7") for key in range(10, 10 + 2 * EPOCHS, 2)}
    remade = replace(run(), steps=steps, loaders=made, ended_ns=ended_ns)
    account = account_of(remade)
    assert account is not None
    (saving,) = savings_of(remade, account, 0.1)
    assert saving.saved_s == pytest.approx((EPOCHS - 1) * (FIRST_S - 0.1))
    assert saving.note is not None
    assert saving.note.endswith("make the loader once, before the epochs")


def test_the_waiting_of_a_run_is_that_of_all_its_steps_but_the_first() -> None:
    found = details_of(analyze(run()))["run"]
    starts_s, waits_s = (EPOCHS - 1) * FIRST_S, EPOCHS * (STEPS - 1) * WAIT_S
    length_s = found.wall_s - found.parts["start-up"] - FIRST_S
    assert found.waiting.share == pytest.approx((starts_s + waits_s) / length_s)
    assert found.waiting.of_starts == pytest.approx(starts_s / length_s)
    assert found.waiting.of_earlier == 0


def test_epochs_before_those_that_the_verdict_is_about_are_told_apart() -> None:
    """The first epoch fills a cache: 40 ms of waiting at each step."""
    steps = np.concatenate([_pass(number, 40, 0.040 if number == 0 else 0.0001) for number in range(4)])
    ended_ns = int(steps["start_ns"][-1]) + int(1e7)
    cold = replace(run(), steps=steps, loaders={0: replace(FACTS, num_workers=0)}, started_ns=0, ended_ns=ended_ns)
    found = details_of(analyze(cold))
    assert [one.last_pass for one in found["regimes"]] == [0, 3]
    assert found["run"].waiting.of_earlier == pytest.approx(found["run"].waiting.share, rel=0.02)
    assert found["run"].waiting.share > 0.2


def _pass(number: int, num: int, wait_s: float) -> Steps:
    found = np.zeros(num, STEP)
    found["start_ns"] = ((2.1 * number + np.arange(num) * (wait_s + WORK_S)) * 1e9).astype(np.int64)
    found["pass_id"], found["host_wait_s"], found["host_work_s"], found["gap_s"] = number, wait_s, WORK_S, np.nan
    found["work_s"], found["num_ready"], found["is_first"][0] = np.nan, -1, True
    return found


def test_a_process_of_which_the_beginning_is_not_known_has_no_account() -> None:
    assert account_of(replace(run(), started_ns=None)) is None
    assert account_of(replace(run(), steps=rows()[0][:0])) is None
