"""Freeing a large batch counts as waiting for it, not as the step's work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from diagnosis_processes import process

from datapipe.analysis.judge.adjusting import with_freeing
from datapipe.analysis.judge.analysis import analyze
from datapipe.instruments.attach import passes
from datapipe.instruments.attach.passes import OpenPass
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.watching import LoaderFacts, Watch
from datapipe.instruments.torch_stages.profile import ARRIVALS, Arrival, BatchProfile, Making, Passage

MS = 1e-3


def on_host(freed_ms: int | None) -> Process:
    """Steps of 10 ms after batches that take 30; freeing each was timed for every fourth batch."""
    found = process(make_s=30 * MS, work_s=1 * MS)
    steps = found.steps.copy()
    for name in ("gap_s", "work_s", "copy_s", "sync_s"):
        steps[name] = np.nan
    profiles = [
        replace(one, freed_ns=None if freed_ms is None or number % 4 != 2 else freed_ms * 1_000_000)
        for number, one in enumerate(found.profiles)
    ]
    steps["host_work_s"] = 10 * MS
    steps["start_ns"] = np.arange(len(steps)) * 30_000_000
    profiles = [replace(one, asked_ns=int(row["start_ns"])) for one, row in zip(profiles, steps, strict=True)]
    return replace(found, steps=steps, profiles=tuple(profiles))


def test_it_moves_from_work_to_waiting() -> None:
    before, after = on_host(6), with_freeing(on_host(6))
    moved = after.steps["host_wait_s"] - before.steps["host_wait_s"]
    assert moved[[1, 5, 9]].tolist() == [0.0] * 3  # the batch was still held
    assert np.delete(moved, np.arange(1, 60, 4)) == pytest.approx(np.full(45, 6 * MS))
    assert after.steps["host_wait_s"] + after.steps["host_work_s"] == pytest.approx(
        before.steps["host_wait_s"] + before.steps["host_work_s"]
    )
    moved_ns = after.profiles[0].moved
    assert moved_ns is not None
    first = before.profiles[0].moved
    assert first is not None
    assert moved_ns.open_end_ns - first.open_end_ns == 6_000_000


def test_it_is_part_of_the_share_but_does_not_delay_a_busy_worker() -> None:
    without, with_it = (analyze(on_host(freed_ms)) for freed_ms in (None, 8))
    shares = [found.figures.starvation for found in (without, with_it)]
    assert shares[0] is not None
    assert shares[1] is not None
    assert shares[1].value > shares[0].value + 0.1
    assert with_it.attribution is not None
    assert with_it.attribution.fault == "decode"
    assert sum(one.share or 0.0 for one in with_it.attribution.stages if one.name == "transfer") < 0.01


def test_a_devices_time_is_left_alone() -> None:
    found = process(make_s=30 * MS, work_s=10 * MS)
    timed = replace(found, profiles=tuple(replace(one, freed_ns=5_000_000) for one in found.profiles))
    assert with_freeing(timed).steps is found.steps
    assert with_freeing(found) is found


class Batch:
    """Notes when it goes."""

    def __init__(self, number: int, gone: list[int]) -> None:
        self.number, self.gone = number, gone

    def __del__(self) -> None:
        self.gone.append(self.number)


class Kept:
    """A sink of profiles."""

    def __init__(self) -> None:
        self.profiles: list[BatchProfile] = []

    def note_profile(self, profile: BatchProfile) -> None:
        self.profiles.append(profile)

    def note_loader(self, facts: LoaderFacts, loader: Any) -> None: ...


def test_there_is_room_for_eight_batches_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_blocks=900, f_bavail=800, f_frsize=10))
    assert passes._has_room(999)
    assert not passes._has_room(1000)

    def missing(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr("os.statvfs", missing)
    assert not passes._has_room(1), "without /dev/shm nothing can be told"


@pytest.mark.parametrize("nbytes", [64 << 20, 1000])
def test_a_large_batch_is_held_for_one_step_more(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_has_room", lambda nbytes: True)
    gone, sink = list[int](), Kept()
    making = process(make_s=30 * MS, work_s=1 * MS).profiles[0].made
    made: Making = replace(making, iterator=(7, 7), nbytes=nbytes)

    def batches() -> Iterator[Any]:
        for number in range(6):
            batch = Batch(number, gone)
            ARRIVALS.add(batch, Arrival(made, Passage(0, 0, 0, 0)))
            yield batch
            del batch

    run = OpenPass(Watch(None, sink), None, loader=0, pass_id=0, iterator=(7, 7))  # type: ignore[arg-type]
    iterator = batches()
    alive = list[list[int]]()
    for _ in range(6):
        batch = run.next(next, iterator)  # rebinds: the loop's own reference goes
        alive.append([number for number in range(6) if number not in gone and number <= batch.number])
    timed = [number for number, one in enumerate(sink.profiles) if one.freed_ns is not None]
    if nbytes < 4 << 20:
        assert timed == []
        assert alive == [[0], [1], [2], [3], [4], [5]]
    else:
        assert timed == [2]
        assert alive == [[0], [0, 1], [2], [3], [4], [4, 5]]
