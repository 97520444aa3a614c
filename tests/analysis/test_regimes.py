"""Passes of different level: told apart, and only the latest judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis_processes import process

from datapipe.analysis.judge.analysis import analyze
from datapipe.analysis.judge.steady import of_latest, regimes_of
from datapipe.instruments.measure.recorded import Process


def passes(*waits_s: float, num_steps: int = 40) -> Process:
    """A pass for each of these waits, with steps of 10 ms of work."""
    base = process(make_s=0.01, work_s=0.01, num_steps=num_steps)
    parts = []
    for number, wait_s in enumerate(waits_s):
        steps = base.steps.copy()
        steps["pass_id"] = number
        steps["host_wait_s"] = steps["gap_s"] = wait_s
        steps["host_work_s"] = steps["work_s"] = 0.010
        steps["copy_s"], steps["num_ready"] = 0.0, 0
        steps["start_ns"] = (np.arange(num_steps) + number * num_steps) * int((wait_s + 0.01) * 1e9)
        parts.append(steps)
    return replace(base, steps=np.concatenate(parts), profiles=())


def test_a_first_epoch_that_fills_a_cache_is_a_regime_of_its_own() -> None:
    found = regimes_of(passes(0.090, 0.0, 0.0, 0.001).steps, 0)
    assert [(one.first_pass, one.last_pass) for one in found] == [(0, 0), (1, 3)]
    assert found[0].waiting == pytest.approx(0.9)
    assert found[1].waiting == pytest.approx(0.03, abs=0.01)
    assert found[0].step_s == pytest.approx(0.100)


def test_the_verdict_is_of_the_latest() -> None:
    cached = analyze(passes(0.090, 0.0, 0.0, 0.0))
    assert cached.verdict.severity == "fine"
    assert cached.figures.num_steps == 3 * 39
    assert cached.steady[:40].sum() == 0, "of the first epoch nothing counts"
    assert len(cached.steady) == 160
    worse = analyze(passes(0.0, 0.0, 0.040))
    assert worse.verdict.figures.starvation is not None
    assert worse.verdict.figures.starvation.value == pytest.approx(0.8)


def test_passes_that_are_alike_are_one() -> None:
    alike = passes(0.010, 0.011, 0.009, 0.012)
    assert len(regimes_of(alike.steps, 0)) == 1
    assert of_latest(alike.steps, 0, regimes_of(alike.steps, 0)).all()


def test_short_passes_decide_nothing() -> None:
    short = passes(0.090, 0.0, num_steps=8)
    assert len(regimes_of(short.steps, 0)) == 1
    assert regimes_of(short.steps[:0], 0) == []
