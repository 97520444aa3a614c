"""Steps in bounded memory, totals exact, NaN as null."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from datapipe.instruments.measure.timeline import STEP, Timeline


def step(**fields: Any) -> dict[str, Any]:
    zero = np.zeros((), STEP)
    return {name: zero[name].item() for name in STEP.names or ()} | fields


def test_the_latest_steps_are_kept_and_all_are_summed() -> None:
    timeline = Timeline(capacity=2000)
    for number in range(5000):
        timeline.add(step(start_ns=number, host_wait_s=0.001, gap_s=0.0005, work_s=0.01, num_updates=number % 2))
    steps = timeline.steps()
    assert steps["start_ns"].tolist() == list(range(3000, 5000))
    assert timeline.steps(latest=3)["start_ns"].tolist() == [4997, 4998, 4999]
    assert len(timeline) == timeline.training.num_steps == 5000
    assert timeline.training.host_wait_s == pytest.approx(5.0)
    assert timeline.training.gap_s == pytest.approx(2.5)


@pytest.mark.parametrize("num", [0, 1, 1023, 1024, 1025, 1999, 2000, 2001])
def test_order_holds_at_every_size(num: int) -> None:
    timeline = Timeline(capacity=2000)
    for number in range(num):
        timeline.add(step(start_ns=number))
    assert timeline.steps()["start_ns"].tolist() == list(range(max(0, num - 2000), num))


def test_a_copy_is_handed_out() -> None:
    timeline = Timeline()
    timeline.add(step(start_ns=1))
    timeline.steps()["start_ns"][0] = 99
    assert timeline.steps()["start_ns"].tolist() == [1]
