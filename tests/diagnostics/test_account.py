"""Where a whole run's time went: parts that add up, loaders apart, and what keeping workers would save."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis_processes import FACTS, process

from datapipe.diagnostics.details import account_of, savings_of
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
                row["host_wait_s"], row["host_work_s"] = wait_s, WORK_S
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


def test_a_process_of_which_the_beginning_is_not_known_has_no_account() -> None:
    assert account_of(replace(run(), started_ns=None)) is None
    assert account_of(replace(run(), steps=rows()[0][:0])) is None
