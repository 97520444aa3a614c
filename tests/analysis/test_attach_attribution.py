"""Who is charged with a wait, on timelines made by hand (in milliseconds), where the answer is known."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.analysis.judge.attribution import attribute, attribute_events
from datapipe.analysis.judge.breakdown import SpanIndex, WorkSpan, charge
from datapipe.analysis.judge.fault import Fault
from datapipe.core.observe import Stage, StageEvent
from datapipe.instruments.torch_stages.profile import (
    BatchProfile,
    Counters,
    Making,
    Passage,
    Pinning,
    SampledCall,
    TransformTime,
)

MS = 1_000_000


def profile(
    step: int,
    start: float,
    *,
    dataset: float = 0,
    collate: float = 0,
    transfer: float = 0,
    asked: float,
    worker: int | None = 0,
    cpu: float = 0,
    queued: float | None = None,
    transforms: dict[str, float] | None = None,
    pin: float = 0,
    around: float = 0,
) -> BatchProfile:
    """A batch that is being made from `start` on, is returned once it is ready, and was requested before."""
    at = [round(value * MS) for value in itertools.accumulate([start, dataset, collate, transfer, pin])]
    taken = max(at[-1], round(asked * MS)) + round(around * MS)
    made = Making(
        iterator=(1, 0),
        pid=100 + (worker or 0),
        worker=worker,
        num_samples=8,
        nbytes=None,
        start_ns=at[0],
        collate_start_ns=at[1],
        ready_ns=at[2],
        dataset_cpu_ns=round(cpu * MS),
        collate_cpu_ns=round(collate * MS),
        process_cpu_ns=None,
        transforms=None if transforms is None else tuple(TransformTime(n, round(t * MS), 0) for n, t in transforms.items()),
        transform_ns=None if transforms is None else round(sum(transforms.values()) * MS),
        counters=Counters(None, None, None if queued is None else round(queued * MS)),
    )
    moved = None if worker is None else Passage(at[2], at[2], at[3], at[3])
    pinned = Pinning(at[3], at[4]) if pin else None
    return BatchProfile(0, 0, step, round(asked * MS), taken, made, moved, pinned)


def of_wait(found: Fault) -> dict[str, float]:
    return {stage.transform or stage.name: round(stage.share or 0, 6) for stage in found.stages if stage.share}


def test_a_wait_for_a_batch_in_the_making_is_charged_with_its_whole_way() -> None:
    # made until 26, in transfer until 36, pinned until 40; what happened before the request, at 10, made it late as well
    found = attribute([profile(0, 0, dataset=20, collate=6, transfer=10, pin=4, asked=10)])
    assert of_wait(found) == pytest.approx({"read": 0.5, "collate": 0.15, "transfer": 0.25, "pin": 0.1}, abs=1e-6)
    assert found.wait_s == pytest.approx(0.030)


def test_a_wait_for_a_batch_that_is_made_is_charged_with_what_it_goes_through() -> None:
    # made until 26, requested at 30, in transfer until 36, pinned until 40
    found = attribute([profile(0, 0, dataset=20, collate=6, transfer=10, pin=4, asked=30)])
    assert of_wait(found) == pytest.approx({"transfer": 0.6, "pin": 0.4})


def test_work_that_nobody_waited_for_is_charged_to_nobody() -> None:
    # batch 0 is there in time; batch 1 is collated for longer than it is waited for
    early = profile(0, 0, dataset=90, asked=100)
    found = attribute([early, profile(1, 90, dataset=5, collate=15, asked=101)])
    assert of_wait(found) == pytest.approx({"collate": 0.75, "read": 0.25})
    assert {stage.name: round(stage.work_share or 0, 3) for stage in found.stages} == {"collate": 0.136, "read": 0.864}


def test_what_comes_last_is_not_blamed_for_what_came_before() -> None:
    # one worker, always busy, 2 ms slower than the training: each batch is waited for while it is being collated
    batches = [profile(step, 22 * step, dataset=19, collate=3, asked=22 * step + 20) for step in range(8)]
    found = attribute(batches)
    assert found.wait_s == pytest.approx(8 * 0.002)
    assert (found.fault, of_wait(found)) == ("read", pytest.approx({"read": 19 / 22, "collate": 3 / 22}, abs=1e-6))


def test_a_busy_worker_is_not_late_because_of_what_comes_after_it() -> None:
    # always making the next batch, 20 ms each; moving one takes 10 ms, meanwhile; the training takes 2 ms
    batches = [profile(step, 20 * step, dataset=20, transfer=10, asked=20 * step + 12) for step in range(8)]
    found = attribute(batches, waits=[(one.asked_ns, one.taken_ns) for one in batches[1:]])
    assert of_wait(found) == {"read": 1.0}


def test_a_worker_that_had_to_wait_for_the_consumer_is_late_because_of_that_too() -> None:
    # one batch ahead: the next is begun when one has been taken, 10 ms after the last was ready, of which 6 were the transfer
    batches = [profile(step, 30 * step, dataset=20, transfer=10, asked=30 * step + 4) for step in range(8)]
    found = attribute(batches, waits=[(one.asked_ns, one.taken_ns) for one in batches[1:]])
    assert of_wait(found) == pytest.approx({"read": 2 / 3, "transfer": 1 / 3}, abs=1e-6)


def test_before_its_turn_a_batch_is_charged_with_what_its_worker_made() -> None:
    # the worker makes batch 0 until 50; batch 1 begins then, and is waited for from 20
    first = profile(0, 0, dataset=10, collate=40, asked=15)
    second = profile(1, 50, dataset=10, collate=0, asked=20)
    found = attribute([first, second], waits=[(20 * MS, 60 * MS)])
    assert of_wait(found) == pytest.approx({"collate": 24 / 40, "read": 16 / 40})
    third = attribute([first, second], waits=[(51 * MS, 60 * MS)])
    assert of_wait(third) == {"read": 1.0}


def test_the_dataset_is_divided_by_what_kept_it() -> None:
    # of 100 ms: 20 without a core, transforms 40 of the rest (scaled by 0.8), on the CPU 24, else waiting
    batch = profile(0, 0, dataset=100, asked=0, cpu=24, queued=20, transforms={"Crop": 30, "Flip": 10}, worker=None)
    parts = of_wait(attribute([batch]))
    assert parts == pytest.approx({"cores": 0.20, "Crop": 0.24, "Flip": 0.08, "decode": 0.24, "read": 0.24})


def test_transforms_that_were_not_timed_count_as_on_average() -> None:
    timed = profile(0, 0, dataset=100, asked=0, transforms={"Crop": 60}, worker=None)
    other = profile(1, 100, dataset=120, asked=100, transforms=None, worker=None)
    assert of_wait(attribute([timed, other])) == pytest.approx({"Crop": 120 / 220, "read": 100 / 220}, abs=1e-5)


def test_time_around_the_loader_is_the_samplers() -> None:
    found = attribute([profile(0, 0, dataset=1, asked=0, around=9)])
    assert found.fault == "sampler"


def test_start_up_counts_where_there_is_nothing_else() -> None:
    batches = [profile(0, 1000, dataset=1, asked=0), profile(1, 1001, dataset=1, asked=1002)]
    assert attribute(batches).fault == "startup"
    batches += [profile(2, 1002, dataset=100, asked=1003)]
    assert attribute(batches).fault == "read"


def test_the_slow_worker_and_the_head_of_the_line() -> None:
    # workers 0 and 1 take 10 and 50 ms; batches come in turn
    batches = []
    now = 0.0
    ready = [0.0, 0.0]
    for step in range(10):
        worker = step % 2
        start, ready[worker] = ready[worker], ready[worker] + (50 if worker else 10)
        batches.append(profile(step, start, dataset=ready[worker] - start, asked=now, worker=worker))
        now = max(now, ready[worker])
    found = attribute(batches)
    assert found.worker == 1
    assert found.head_of_line_s == pytest.approx(0.155, abs=0.06)
    assert "Worker 1" in found.reason
    even = attribute([profile(step, 10 * (step // 2), dataset=10, asked=10 * (step // 2), worker=step % 2) for step in range(10)])
    assert even.worker is None
    assert even.head_of_line_s == 0


def test_without_waits_nobody_is_at_fault() -> None:
    found = attribute([profile(0, 0, dataset=10, asked=10)])
    assert (found.fault, found.wait_s) == (None, 0)
    assert "no time" in found.reason
    assert attribute([]).stages == ()
    assert attribute([], [(0, 5)]).wait_s == 0


intervals = st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))
layers = st.lists(st.lists(st.tuples(st.sampled_from("abc"), intervals), max_size=6), max_size=3)


@quick
@given(interval=intervals, layers=layers)
def test_charging_agrees_with_counting_every_moment(interval: tuple[int, int], layers: Any) -> None:
    spans = [[WorkSpan(what, *times) for what, times in layer] for layer in layers]
    expected: dict[str, float] = {}
    for moment in range(*interval):
        active = next((a for layer in spans if (a := [s.what for s in layer if s.start_ns <= moment < s.end_ns])), ["rest"])
        for what in active:
            expected[what] = expected.get(what, 0) + 1 / len(active)
    charged = charge(*interval, spans, "rest")
    assert {what: value for what, value in charged.items() if value} == pytest.approx(expected)
    assert math.isclose(sum(charged.values()), interval[1] - interval[0])


@quick
@given(spans=st.lists(intervals, max_size=12), interval=intervals)
def test_the_index_finds_every_span_that_overlaps(spans: list[tuple[int, int]], interval: tuple[int, int]) -> None:
    found = SpanIndex(WorkSpan("x", *times) for times in spans).during(*interval)
    needed = [times for times in spans if times[0] < interval[1] and times[1] > interval[0] and times[1] > times[0]]
    assert all(times in [(span.start_ns, span.end_ns) for span in found] for times in needed)


def event(stage: Stage, step: int, start: float, duration: float) -> StageEvent:
    return StageEvent(stage, step, round(start * MS), round(duration * MS), 8)


def test_our_own_loader_is_charged_by_the_same_rule() -> None:
    events = [
        event(Stage.WAIT, 3, 0, 40),
        event(Stage.READ, 3, 10, 10),
        event(Stage.DECODE, 3, 20, 10),
        event(Stage.AUGMENT, 3, 20, 10),  # another block of the batch, at the same time
        event(Stage.DECODE, 2, 0, 10),  # an earlier batch keeps the threads
        event(Stage.COLLATE, 3, 30, 5),
    ]
    found = attribute_events([events])
    shares = {"read": 0.25, "decode": 0.125 + 0.25, "augment": 0.125, "collate": 0.125, "idle": 0.125}
    assert of_wait(found) == pytest.approx(shares)
    assert found.fault == "decode"
    again = [replace(one, start_ns=one.start_ns + round(100 * MS)) for one in events]
    twice = attribute_events([events, again])  # the second pass counts its steps from 0, too
    assert of_wait(twice) == of_wait(found)
    assert twice.wait_s == 2 * (found.wait_s or 0)
    assert attribute_events([]).fault is None


def test_what_a_dataset_computes_itself_is_not_called_decoding() -> None:
    decoding = SampledCall(True)
    resize = SampledCall(False, "cv2.resize", "Photos.__getitem__", "photos.py:12")
    other = [SampledCall(False, f"np.f{number}", "smooth", f"photos.py:{20 + number}") for number in range(40)]
    calls = (*[decoding] * 20, *[resize] * 40, *other)
    batch = profile(0, 0, dataset=100, asked=0, cpu=50, worker=None)
    found = attribute([replace(batch, made=replace(batch.made, calls=calls))])
    assert of_wait(found) == pytest.approx({"read": 0.5, "decode": 0.1, "cv2.resize": 0.2, "smooth": 0.2})
    assert (found.fault, found.detail) == ("read", None)
    few = attribute([replace(batch, made=replace(batch.made, calls=calls[:5]))])  # too few to tell shares by
    assert of_wait(few) == pytest.approx({"read": 0.5, "decode": 0.5})
