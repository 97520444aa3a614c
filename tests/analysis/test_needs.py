"""What would have to become faster: the replay with less of a stage agrees with arithmetic."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from diagnosis_processes import process

from datapipe.analysis.judge.fault import Fault, StageOfWait
from datapipe.analysis.predict.needs import LoaderSituation, advice_for, needs_of, sample_nbytes_of
from datapipe.analysis.predict.replay import Delivery, Setup
from datapipe.analysis.predict.workload import Workload


def workload(*, made_s: float, delivered_s: float = 5e-5, work_s: float = 0.010, num_workers: int = 1) -> Workload:
    used = np.full(200, work_s)
    setup = Setup(num_workers, max(1, 2 * num_workers))
    return Workload(np.full(200, made_s), None, np.array([delivered_s]), 0.1 * used, used, np.zeros(200, bool), setup)


def attribution(*shares: tuple[str, str | None, float, float]) -> Fault:
    """`shares`: stage, transform, of the wait, of the work."""
    rows = [
        StageOfWait(name=name, detail=None if transform is None else f"{name} {transform}", share=share, work_share=work_share)
        for name, transform, share, work_share in shares
    ]
    return Fault(stages=tuple(rows), fault="decode", wait_s=1.0)


def test_a_stage_that_is_most_of_the_making() -> None:
    made = workload(made_s=0.040)
    (decode, crop) = needs_of(
        made,
        attribution(("decode", None, 0.6, 0.6), ("transform", "Crop", 0.4, 0.4)),
        {"dataset": "a.py:3 (Photos)", "transform Crop": "a.py:9 (Crop)"},
    )
    # Without decoding 16 ms are left, without the crop 24: more than the device's 10, either way.
    assert (decode.where, decode.times_faster) == ("a.py:3 (Photos)", None)
    assert decode.step_s == pytest.approx(0.016, rel=0.02)
    assert (crop.name, crop.where, crop.times_faster) == ("Crop", "a.py:9 (Crop)", None)
    assert crop.step_s == pytest.approx(0.024, rel=0.02)


def test_how_much_faster() -> None:
    (read,) = needs_of(workload(made_s=0.040), attribution(("read", None, 1.0, 0.9)), {})
    assert read.times_faster == pytest.approx(40 / 10.5, rel=0.1)  # the only stage there is: all of the making
    (read,) = needs_of(workload(made_s=0.020), attribution(("read", None, 0.9, 0.9), ("collate", None, 0.01, 0.1)), {})
    # 2 ms of collating stay; reading in 18 ms must fit into 8.5, as 5% of waiting is allowed
    assert read.times_faster == pytest.approx(18 / 8.5, rel=0.1)
    assert read.step_s == pytest.approx(0.010, rel=0.02)


def test_a_slow_sampler_is_the_callers_own_time() -> None:
    (sampler,) = needs_of(
        workload(made_s=0.002, delivered_s=0.030),
        attribution(("sampler", None, 0.97, 0.0)),
        {"sampler": "a.py:40 (Slow.__iter__)"},
    )
    assert (sampler.stage, sampler.where) == ("sampler", "a.py:40 (Slow.__iter__)")
    assert sampler.step_s == pytest.approx(0.010, rel=0.15)
    assert sampler.times_faster is not None


def test_waiting_for_a_core_is_told_as_what_is_computed() -> None:
    (need,) = needs_of(
        workload(made_s=0.040),
        attribution(("cores", None, 0.96, 0.6), ("decode", None, 0.04, 0.35), ("collate", None, 0.0, 0.05)),
        {},
    )
    assert need.stage == "decode"


def test_a_replay_that_does_not_wait_predicts_nothing() -> None:
    (decode,) = needs_of(workload(made_s=0.004), attribution(("decode", None, 1.0, 0.9)), {"dataset": "a.py:3 (Photos)"})
    assert (decode.where, decode.step_s, decode.times_faster) == ("a.py:3 (Photos)", None, None)


def test_the_most_that_a_stage_can_gain() -> None:
    (read,) = needs_of(workload(made_s=0.040), attribution(("read", None, 1.0, 0.9)), {})
    assert read.gain == pytest.approx(30 / 40, abs=0.02)  # the device's 10 ms remain
    (decode, _) = needs_of(workload(made_s=0.040), attribution(("decode", None, 0.6, 0.6), ("read", None, 0.4, 0.4)), {})
    assert decode.gain == pytest.approx(24 / 40, abs=0.02)


@pytest.mark.parametrize(
    ("stage", "situation", "advice"),
    [
        ("sampler", LoaderSituation(has_own_sampler=True), "draw the order of an epoch as one array"),
        ("sampler", LoaderSituation(), "fewer, larger arrays per batch"),
        ("collate", LoaderSituation(num_workers=0), "collate in a worker (num_workers=1)"),
        ("collate", LoaderSituation(num_workers=2), "one torch.stack"),
        ("transfer", LoaderSituation(2, sample_nbytes=600_000), "return uint8 from the workers"),
        ("transfer", LoaderSituation(2, sample_nbytes=16), "fewer, larger arrays: each tensor"),
        ("decode", LoaderSituation(2, sample_nbytes=16), "fewer, larger reads"),
        ("decode", LoaderSituation(2, sample_nbytes=600_000), "convert --resize"),
        ("read", LoaderSituation(2, workers_wait=True), "a file, connection or lock of its own"),
        ("read", LoaderSituation(2), "faster disk"),
        ("startup", LoaderSituation(2), None),
    ],
)
def test_advice_depends_on_the_loader(stage: str, situation: LoaderSituation, advice: str | None) -> None:
    found = advice_for(stage, situation)
    assert found is None if advice is None else advice in (found or "")


def test_how_our_loader_collates_is_not_the_users_to_change() -> None:
    made = workload(made_s=0.040)
    fault = attribution(("collate", None, 1.0, 0.9))
    (theirs,) = needs_of(made, fault, {})
    (ours,) = needs_of(dataclasses.replace(made, setup=dataclasses.replace(made.setup, delivery=Delivery.SHARED)), fault, {})
    assert theirs.advice is not None
    assert ours.advice is None


def test_the_size_of_a_sample_is_measured() -> None:
    profiles = process(make_s=0.03, work_s=0.01).profiles  # batches of 8 samples, 1000 bytes
    assert sample_nbytes_of(profiles) == 125.0
    assert sample_nbytes_of(()) is None
