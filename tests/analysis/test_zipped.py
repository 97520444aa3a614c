"""Loaders that are read in turn make one step: it is said once, and no remedy for one outruns the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis_processes import COMMAND, FACTS, process

from datapipe.analysis.judge.adjusting import join_zipped
from datapipe.analysis.judge.analysis import analyze
from datapipe.analysis.predict.measured_workload import supply_s
from datapipe.diagnostics.diagnosis import diagnose
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.timeline import STEP, Steps
from datapipe.instruments.torch_stages.profile import BatchProfile, Passage

MS = 1e-3


def rows_of(*loaders: int, waits: dict[int, float], num: int = 50, work_s: float = 10 * MS) -> Steps:
    """`num` rounds that read these loaders; the work is done after the last of each."""
    steps = np.zeros(num * len(loaders), STEP)
    now_s = 0.0
    for place in range(len(steps)):
        loader = loaders[place % len(loaders)]
        row = steps[place]
        row["start_ns"], row["loader"], row["pass_id"] = round(now_s * 1e9), loader, loader
        row["host_wait_s"] = waits[loader]
        row["host_work_s"] = work_s if place % len(loaders) == len(loaders) - 1 else 0.01 * MS
        row["gap_s"] = row["work_s"] = row["copy_s"] = row["sync_s"] = np.nan
        row["num_updates"] = place % len(loaders) == len(loaders) - 1
        row["is_first"] = place < len(loaders)
        now_s += float(row["host_wait_s"] + row["host_work_s"])
    return steps


def test_rounds_are_joined() -> None:
    found = join_zipped(rows_of(3, 5, waits={3: 4 * MS, 5: 26 * MS}))
    assert found.loaders == (3, 5)
    assert len(found.steps) == 50
    assert found.steps["host_wait_s"] == pytest.approx(np.full(50, 30 * MS))
    assert found.steps["host_work_s"] == pytest.approx(np.full(50, 10.01 * MS))
    assert found.others_wait_s == pytest.approx(np.full(50, 4 * MS))
    assert set(found.steps["loader"].tolist()) == {5}  # it is waited for longer
    assert set(join_zipped(rows_of(3, 5, waits={3: 4 * MS, 5: 26 * MS}), prefers=3).steps["loader"].tolist()) == {3}
    assert found.of_row.tolist() == [place // 2 for place in range(100)]
    assert found.steps["num_updates"].tolist() == [1] * 50


def test_a_round_that_is_left_keeps_its_row() -> None:
    rows = rows_of(3, 5, waits={3: 4 * MS, 5: 26 * MS})[:-1]
    found = join_zipped(rows)
    assert len(found.steps) == 50
    assert found.steps["loader"].tolist() == [5] * 49 + [3]


def test_other_patterns_are_left_alone() -> None:
    alone = rows_of(3, waits={3: 4 * MS})
    assert join_zipped(alone).steps is alone
    one_after_the_other = np.concatenate([rows_of(3, waits={3: 4 * MS}), rows_of(5, waits={5: 4 * MS})])
    assert join_zipped(one_after_the_other).loaders == ()
    validating = rows_of(3, 5, waits={3: 4 * MS, 5: 4 * MS})
    validating["is_evaluation"] = validating["loader"] == 5
    assert join_zipped(validating).loaders == ()


def zipped() -> Process:
    slow = process(make_s=25 * MS, work_s=10 * MS, cpu=0.05)
    steps = rows_of(0, 1, waits={0: 26 * MS, 1: 14 * MS}, num=60)
    profiles = []
    for number, row in enumerate(steps):
        ready_ns = int(row["start_ns"]) + round(row["host_wait_s"] * 1e9) - 100_000
        made = replace(
            slow.profiles[number // 2].made,
            start_ns=ready_ns - (50_000_000, 34_000_000)[row["loader"]],
            collate_start_ns=ready_ns - 1_000_000,
            ready_ns=ready_ns,
            dataset_cpu_ns=1_000_000,
            collate_cpu_ns=100_000,
        )
        asked_ns, taken_ns = int(row["start_ns"]), int(row["start_ns"] + round(row["host_wait_s"] * 1e9))
        moved = Passage(ready_ns, ready_ns, ready_ns, ready_ns)
        profiles.append(BatchProfile(int(row["loader"]), 0, number // 2, asked_ns, taken_ns, made, moved, None))
    loaders = {key: replace(FACTS, key=key, site=f"/somewhere/train.py:{31 + key}") for key in (0, 1)}
    return replace(slow, steps=steps, profiles=tuple(profiles), loaders=loaders)


def test_the_step_is_said_once_and_whole() -> None:
    found = diagnose([zipped()], COMMAND).document
    assert found.verdict.figures.step_s == pytest.approx(50 * MS, rel=0.01)
    assert found.verdict.starvation is not None
    assert found.verdict.starvation.value == pytest.approx(0.8, abs=0.01)
    assert found.remedies is not None
    assert found.remedies.measured_step_s == pytest.approx(50 * MS, rel=0.01)
    assert found.ranks[0].num_steps in (60, 61)
    assert {row.id: row.num_steps for row in found.loaders} == {0: 60, 1: 60}
    assert found.attribution is not None
    assert found.attribution.wait_s == pytest.approx(59 * 26 * MS, rel=0.05)  # of the loader that is judged


def test_no_remedy_outruns_the_other_loader() -> None:
    process_ = zipped()
    found = analyze(process_)
    assert found.loader is not None
    assert found.loader.key == 0
    assert supply_s(found) == pytest.approx(34 * MS, rel=0.01)
    document = diagnose([process_], COMMAND).document
    assert document.remedies is not None
    outlooks = (*document.remedies.predictions, *document.remedies.within_noise)
    assert min(one.step_s.value for one in outlooks if not one.changes_results) == pytest.approx(34 * MS, rel=0.02)


def test_the_loader_that_is_asked_for_is_judged() -> None:
    found = analyze(zipped(), site="/somewhere/train.py:32")
    assert found.loader is not None
    assert found.loader.key == 1
    assert found.of_loader.step_s == pytest.approx(50 * MS, rel=0.01)
