"""The verdict: what is blamed, and what is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from datapipe.analysis.judge.verdict import Figures, VerdictKind, figures_of, judge, severity_of
from datapipe.instruments.measure.timeline import STEP, Context, Steps


def steps_of(num: int = 200, **columns: Any) -> Steps:
    """A steady run on a device; ten milliseconds of work, one of launching, nothing watched."""
    steps = np.zeros(num, STEP)
    defaults = {"work_s": 0.010, "host_work_s": 0.010, "host_wait_s": 0.0, "gap_s": 0.0, "copy_s": np.nan, "sync_s": np.nan}
    for name, value in (defaults | {"num_ready": -1, "num_updates": -1, "is_ahead": 1} | columns).items():
        steps[name] = value
    steps["is_first"][:1] = True
    return steps


def kind_of(steps: Steps, **options: Any) -> VerdictKind:
    return judge(figures_of(steps, **options)).kind


@pytest.mark.parametrize(("share", "severity"), [(0.049, "fine"), (0.0501, "moderate"), (0.199, "moderate"), (0.2001, "high")])
def test_limits(share: float, severity: str) -> None:
    assert severity_of(share) == severity
    gap = 0.010 * share / (1 - share)
    verdict = judge(figures_of(steps_of(gap_s=gap, host_wait_s=gap)))
    assert verdict.severity == severity
    assert (verdict.kind is VerdictKind.DATA_BOUND) == (severity != "fine")
    assert verdict.figures.starvation is not None
    assert verdict.figures.starvation.value == pytest.approx(share)
    assert f"{share:.1%}" in verdict.reason


def test_hidden_waits_are_no_starvation() -> None:
    verdict = judge(figures_of(steps_of(host_wait_s=0.009)))
    assert verdict.kind is VerdictKind.COMPUTE_BOUND
    assert verdict.figures.hidden_s == pytest.approx(0.009)
    assert verdict.figures.data_s == 0.0


def test_copies_count_as_data() -> None:
    steps = steps_of(copy_s=0.005)
    verdict = judge(figures_of(steps))
    assert verdict.kind is VerdictKind.DATA_BOUND
    assert verdict.figures.starvation is not None
    assert verdict.figures.starvation.value == pytest.approx(5 / 15)
    assert (verdict.figures.gap_s, verdict.figures.copy_s) == (0.0, pytest.approx(0.005))
    assert "copies" in verdict.reason


def test_a_short_gap_with_the_batch_ready_is_the_hosts() -> None:
    short = {"work_s": 0.001, "host_work_s": 0.001, "gap_s": 0.0003, "host_wait_s": 0.0003, "is_ahead": 0}
    ready = judge(figures_of(steps_of(num_ready=2, **short)))
    assert ready.kind is VerdictKind.HOST_BOUND
    assert ready.figures.fetch_s == pytest.approx(0.0003)
    assert kind_of(steps_of(num_ready=0, **short)) is VerdictKind.DATA_BOUND
    unknown = figures_of(steps_of(**short))
    assert unknown.fetch_s is None
    assert judge(unknown).kind is VerdictKind.DATA_BOUND
    # Unpacking a batch in next() is longer than that, and is data.
    assert kind_of(steps_of(num_ready=2, gap_s=0.004, host_wait_s=0.004)) is VerdictKind.DATA_BOUND


def test_a_device_that_runs_out_of_work_before_data_is_asked_for_is_host_bound() -> None:
    launched = {"gap_s": 0.00005, "host_wait_s": 0.00005, "is_ahead": 0}
    assert kind_of(steps_of(**launched)) is VerdictKind.HOST_BOUND
    assert kind_of(steps_of(**{**launched, "gap_s": 0.000002})) is VerdictKind.COMPUTE_BOUND
    # Where the loop waits for the device, that it is idle says nothing.
    synced = judge(figures_of(steps_of(**launched, sync_s=0.008)))
    assert synced.kind is VerdictKind.COMPUTE_BOUND
    assert synced.figures.idle_share is None
    assert "waits for the device in 100%" in synced.reason


def test_waits_that_only_a_sync_exposes() -> None:
    """Made in the caller's thread in 6 ms, after 10 ms of queued work: hidden, had the loop not waited for the device."""
    synced = {"gap_s": 0.006, "host_wait_s": 0.006, "sync_s": 0.009, "is_ahead": 0}
    verdict = judge(figures_of(steps_of(**synced), num_workers=0))
    assert verdict.kind is VerdictKind.SYNC_EXPOSED
    assert verdict.severity == "high"
    assert verdict.figures.exposed_by_sync_s == pytest.approx(0.006, rel=0.02)
    # Workers that are too slow are so with or without it.
    assert kind_of(steps_of(**synced, num_ready=0), num_workers=2) is VerdictKind.DATA_BOUND
    # And of a wait much longer than the work only a part would hide.
    long = judge(figures_of(steps_of(**{**synced, "gap_s": 0.050, "host_wait_s": 0.050}), num_workers=0))
    assert long.kind is VerdictKind.DATA_BOUND
    assert "exposed" in long.reason


def test_without_a_device_it_is_the_host_that_waits() -> None:
    none = {"gap_s": np.nan, "work_s": np.nan, "is_ahead": -1}
    verdict = judge(figures_of(steps_of(host_wait_s=0.005, **none)))
    assert verdict.kind is VerdictKind.DATA_BOUND
    assert "host waits" in verdict.reason
    figures = verdict.figures
    assert figures.basis == "host"
    assert figures.starvation is not None
    assert figures.starvation.value == pytest.approx(5 / 15)
    unmeasured = (figures.hidden_s, figures.copy_s, figures.idle_share, figures.exposed_by_sync_s, figures.ahead_share)
    assert unmeasured == (None,) * 5


def test_too_few_steps_give_no_verdict() -> None:
    for num in (0, 1, 10):
        verdict = judge(figures_of(steps_of(num)))
        assert (verdict.kind, verdict.severity) == (VerdictKind.NOT_ENOUGH, None)
        assert "run longer" in verdict.reason
    assert figures_of(steps_of(0)).step_s is None
    wild = np.where(np.arange(40) == 20, 0.4, 0.0)  # half the time, all in one step
    figures = figures_of(steps_of(40, gap_s=wild, host_wait_s=wild))
    assert judge(figures).kind is VerdictKind.NOT_ENOUGH


def test_a_loader_read_by_another_thread_is_not_judged() -> None:
    figures = figures_of(steps_of(gap_s=0.010, host_wait_s=0.010))
    assert judge(figures, Context("cuda", trains_elsewhere=True)).kind is VerdictKind.NOT_MEASURED
    assert judge(figures, Context("cuda", num_elsewhere=3, num_nested=5)).kind is VerdictKind.DATA_BOUND


def test_accumulation_is_told() -> None:
    updates = np.tile([0, 0, 0, 1], 50)
    assert figures_of(steps_of(num_updates=updates)).updates_per_batch == pytest.approx(0.25, abs=0.01)


def test_a_verdict_is_json() -> None:
    for steps in (steps_of(), steps_of(2), steps_of(gap_s=np.nan, work_s=np.nan)):
        text = json.dumps(msgspec.to_builtins(judge(figures_of(steps))), allow_nan=False)
        assert json.loads(text)["figures"]["copy_s"] is None


def test_figures_are_values() -> None:
    figures: Figures = figures_of(steps_of())
    assert replace(figures, num_steps=3) != figures == figures_of(steps_of())


def test_a_loop_that_never_settles_is_told_as_far_as_it_can_be() -> None:
    """A step that has just become longer has no steady state yet, but that it waits is certain."""
    growing = np.repeat([0.02, 0.08], [140, 60])
    waiting = judge(figures_of(steps_of(gap_s=growing, host_wait_s=growing)))
    assert (waiting.kind, waiting.figures.is_settled, waiting.figures.num_steps) == (VerdictKind.DATA_BOUND, False, 100)
    assert waiting.figures.starvation is not None
    assert waiting.figures.starvation.value == pytest.approx(5600 / 6600, abs=0.01)
    assert "has not settled" in waiting.reason
    busy = judge(figures_of(steps_of(work_s=growing, host_work_s=growing)))
    assert busy.kind is VerdictKind.NOT_ENOUGH
    assert "in the second half of its passes 0.0%" in busy.reason


def test_a_thread_that_feeds_the_loop_is_not_the_loop() -> None:
    waits = {"gap_s": 0.1, "host_wait_s": 0.1}
    feeding = figures_of(steps_of(num_updates=0, **waits))
    verdict = judge(feeding, Context(None, thread="feeder"))
    assert verdict.kind is VerdictKind.NOT_MEASURED
    assert "'feeder'" in verdict.reason
    assert judge(feeding, Context(None)).kind is VerdictKind.DATA_BOUND  # the main thread, without an optimiser
    training = figures_of(steps_of(num_updates=1, **waits))
    assert judge(training, Context(None, thread="trainer")).kind is VerdictKind.DATA_BOUND
