"""The events that an observer of a loader of images gets."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from fixtures import NUM_SAMPLES, listing
from recipes import TRAIN, make, num_threads

import datapipe as dp

pytestmark = pytest.mark.usefixtures("backend")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_observer_sees_every_stage(folder: Path, num_workers: int) -> None:
    events: list[dp.StageEvent] = []
    loader = make(folder, transform=TRAIN, num_workers=num_workers)
    list(loader)
    loader.observe(events.append)
    start_ns = time.perf_counter_ns()
    steps = len(list(loader))
    end_ns = time.perf_counter_ns()
    assert {event.stage for event in events} == set(dp.Stage) - {
        dp.Stage.COPY,
        dp.Stage.NETWORK,
    }  # batches stay in host memory, and come from a disk
    for stage in set(dp.Stage) - {dp.Stage.COPY, dp.Stage.NETWORK}:
        own = [event for event in events if event.stage is stage]
        assert {event.step for event in own} == set(range(steps))
        assert sum(event.num_samples for event in own) == NUM_SAMPLES
        for event in own:
            assert start_ns <= event.start_ns <= event.start_ns + event.duration_ns <= end_ns
        assert sum(event.duration_ns for event in own) > 0
    per_batch = Counter(event.stage for event in events)
    assert per_batch[dp.Stage.WAIT] == per_batch[dp.Stage.COLLATE] == per_batch[dp.Stage.PLAN] == steps
    assert sum(event.nbytes for event in events) == sum(path.stat().st_size for path in listing(folder))
    total_ns = sum(event.duration_ns for event in events if event.stage is not dp.Stage.WAIT)
    assert total_ns <= (end_ns - start_ns) * max(1, num_threads(loader))
