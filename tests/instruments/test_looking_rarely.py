"""Fast batches are looked into rarely, and what was not looked into is taken to be like the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis_processes import process

from datapipe.analysis.judge.attribution import attribute
from datapipe.instruments.torch_stages.timing import TimingSchedule

MS = 1_000_000


def looked_into(made_ns: int, *, num: int = 832, seed: int = 0) -> list[int]:
    schedule, chosen = TimingSchedule(seed), []
    for number in range(num):
        if schedule.is_due():
            chosen.append(number)
            schedule.note(made_ns, None, is_worker=True)
    return chosen


def test_one_of_eight_fast_batches() -> None:
    chosen = looked_into(MS // 10)
    assert chosen[:32] == list(range(32))
    assert len(chosen) == 32 + 100
    places = [number % 8 for number in chosen[32:]]
    assert min(places.count(place) for place in range(8)) > 4  # no period of eight is missed
    assert looked_into(MS // 10, seed=1) == chosen  # all workers choose the same rounds


def test_every_slow_batch() -> None:
    assert looked_into(5 * MS) == list(range(832))


def test_waiting_for_the_others_is_like_that_for_those() -> None:
    found = process(make_s=0.03, work_s=0.005, cpu=0.2)
    waits = [(one.asked_ns, one.taken_ns) for one in found.profiles]
    whole, part = attribute(found.profiles, waits), attribute(found.profiles[::8], waits)
    assert part.fault == whole.fault == "read"
    assert part.wait_s == pytest.approx(whole.wait_s, rel=0.15)  # but for those after the last profile
    assert {stage.name: stage.share for stage in part.stages} == pytest.approx(
        {stage.name: stage.share for stage in whole.stages}, abs=0.05
    )
    late = [replace(one, asked_ns=one.asked_ns + 10**12, taken_ns=one.taken_ns + 10**12) for one in found.profiles]
    assert attribute(late, waits).fault is None
