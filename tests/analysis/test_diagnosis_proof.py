"""A part of the proof: known faults on devices that log their own work. All of it: `python -m benchmarks.diagnostics`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from fixtures import timed

from benchmarks.diagnostics.__main__ import apply_virtually, freeze
from benchmarks.diagnostics.cells import JITTERS, PLACES, STALLS_MS, Cell, matrix
from benchmarks.diagnostics.devices import DeviceLog
from benchmarks.diagnostics.outcomes import Finding, apply_all, find, sum_up
from benchmarks.diagnostics.real_runs import real_cells, run_control, run_real
from benchmarks.diagnostics.runs import run_ranks
from benchmarks.harness import RESULTS
from datapipe.analysis.judge.attribution import attribute
from datapipe.analysis.judge.verdict import VerdictKind, figures_of, judge

_ONCE = 0.25  # of a wait, by which a loaded machine may lengthen it: what is counted twice is twice as long


def test_the_matrix_is_whole() -> None:
    cells = matrix()
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.place for cell in cells} == set(PLACES)
    assert {cell.stall_ms for cell in cells} >= set(STALLS_MS)
    assert {cell.jitter for cell in cells} == set(JITTERS)
    assert {(cell.num_workers, cell.prefetch) for cell in cells} >= {(0, 1), (2, 1), (2, 8), (4, 8)}
    assert len(real_cells()) >= 40


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    return [find(cell, run_ranks(cell)) for cell in matrix()[::41]]


@pytest.mark.nightly
def test_starvation_verdicts_and_predictions_hold_in_virtual_time(findings: list[Finding], tmp_path: Path) -> None:
    frozen = freeze(findings, tmp_path / "predictions.jsonl")
    lines = [json.loads(line) for line in (tmp_path / frozen["file"]).read_text().splitlines()]
    assert len(lines) == sum(finding.forecast is not None for finding in findings)
    applied = [one for f in findings if f.forecast for one in apply_all(f, apply_virtually)]
    found = sum_up(findings, applied)
    assert found["num_measured_right"] + found["num_unsettled"] == found["num_cells"] >= 20
    assert found["num_unsettled"] <= 0.05 * found["num_cells"]
    assert found["num_judged_right"] >= 0.95 * found["num_cells"]
    assert found["num_false_without_stall"] == 0
    for name in ("predictions", "of_starved"):
        assert found[name]["num"] >= 20
        assert found[name]["median_error"] <= 0.10
        assert found[name]["p90_error"] <= 0.20
    assert found["num_top_right"] >= 0.9 * found["num_ranked"]


@pytest.mark.nightly
def test_the_stage_with_the_planted_fault_is_blamed(findings: list[Finding]) -> None:
    crowded = [Cell("decode", 100, 4, 2, "none", cores) for cores in (2.0, 3.0)]  # with 2 cores, half the time goes by without
    barely_short = matrix()[-16::3]
    found = sum_up([*findings, *(find(cell, run_ranks(cell)) for cell in (*crowded, *barely_short))], [])
    assert set(found["stages"]) >= {"read", "decode", "transform ColorJitter", "collate", "transfer", "cores"}
    assert found["num_staged"] >= 16
    assert found["num_stage_right"] >= 0.95 * found["num_staged"], found["misses"]["stage"]


def test_a_slow_rank_is_named() -> None:
    cell = Cell("rank", 20, 0, 1, "none")
    finding = find(cell, run_ranks(cell))
    assert finding.slow_rank == 0
    assert finding.verdict.kind is VerdictKind.DATA_BOUND
    backwards = find(finding.cell, run_ranks(finding.cell)[::-1])
    assert backwards.slow_rank == 1
    assert backwards.verdict.kind is not VerdictKind.DATA_BOUND  # it waits in the collective, not for data


def test_python_in_the_loop_is_not_the_loaders_fault() -> None:
    for stall_ms in (20, 100):
        cell = Cell("python", stall_ms, 2, 2, "none")
        verdict = find(cell, run_ranks(cell)).verdict
        assert verdict.kind is VerdictKind.HOST_BOUND
        assert verdict.figures.data_s == pytest.approx(0.0, abs=1e-4)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "cell", [Cell("read", 0, 2, 2, "none"), Cell("read", 20, 2, 1, "none"), Cell("sync", 20, 0, 1, "none")], ids=lambda c: c.name
)
@timed
def test_the_bracket_agrees_with_a_device_in_real_time(cell: Cell) -> None:
    """Torch's DataLoader, a device that is a thread: the device's own log of the same steps decides, whatever else runs."""
    run = run_real(cell, num_batches=60)
    assert len(run.steps) == 60
    measured, logged = float(run.steps["gap_s"].mean()), float(run.truth_s.mean())
    assert abs(measured - logged) <= max(0.5e-3, 0.05 * logged)
    if cell.stall_ms:
        assert logged > 0.0005
        assert len(run.process.profiles) == 60
        assert attribute(run.process.profiles[2:]).fault == "read"
        assert judge(figures_of(run.steps, num_workers=cell.num_workers)).kind in (VerdictKind.DATA_BOUND, VerdictKind.NOT_ENOUGH)


@pytest.mark.nightly
def test_a_loader_wrapped_twice_counts_once() -> None:
    run = run_control("wrapped twice", num_batches=40)
    assert len(run.steps) == 40
    assert run.context.num_nested >= 40
    assert float(run.steps["gap_s"].mean()) == pytest.approx(float(run.truth_s.mean()), rel=_ONCE)


@pytest.mark.nightly
def test_a_loader_behind_a_thread_is_measured_outside_it_or_not_at_all() -> None:
    outside = run_control("outermost over a thread", num_batches=40)
    assert outside.context.num_elsewhere >= 40
    assert float(outside.steps["gap_s"].mean()) == pytest.approx(float(outside.truth_s.mean()), rel=_ONCE)
    inside = run_control("inner loader in a thread", num_batches=40)
    assert inside.context.trains_elsewhere
    assert judge(figures_of(inside.steps), inside.context).kind is VerdictKind.NOT_MEASURED


def test_a_devices_log_counts_what_lies_within() -> None:
    log = DeviceLog()
    log.add(1.0, 2.0, "work")
    log.add(2.0, 2.5, "copy")
    log.add(4.0, 5.0, "work")
    windows = np.array([[0.0, 0.5], [0.5, 1.5], [1.2, 1.3], [2.2, 4.5], [0.0, 9.0], [5.0, 6.0]])
    assert log.idle_within(windows) == pytest.approx([0.5, 0.5, 0.0, 1.5, 6.5, 1.0])
    assert log.copies_within(windows) == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.5, 0.0])
    assert log.step_ends().tolist() == [2.0, 5.0]


@pytest.mark.parametrize(("time", "num_cells"), [("virtual", 800), ("real", 40)])
def test_what_is_published_is_of_all_cells_and_met_what_was_asked(time: str, num_cells: int) -> None:
    published = json.loads((RESULTS / f"diagnostics-{time}.json").read_text())
    text = (RESULTS / published["predictions_file"]["file"]).read_bytes()
    assert hashlib.sha256(text).hexdigest() == published["predictions_file"]["sha256"]
    assert published["num_cells"] >= num_cells
    assert published["num_measured_right"] + published["num_unsettled"] == published["num_cells"]
    assert published["num_false_without_stall"] == 0
    assert published["of_starved"]["median_error"] <= 0.10
    assert published["of_starved"]["p90_error"] <= 0.20
    assert published["num_top_right"] >= 0.9 * published["num_ranked"]
    assert published["num_staged"] >= 10
    assert published["num_stage_right"] >= 0.95 * published["num_staged"]
