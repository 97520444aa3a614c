"""The trace: it keeps the rules of its format, and says what the document says."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from report_documents import KINDS, document

from datapipe.diagnostics.report.trace import trace

Event = dict[str, Any]


def broken_rules(found: dict[str, Any]) -> list[str]:
    """Of the trace event format: what each event has to have, and that those of a thread are nested or apart."""
    problems, threads = [], defaultdict(list)
    json.dumps(found, allow_nan=False).encode()
    for event in found["traceEvents"]:
        if not (isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)):
            problems.append(f"no place: {event}")
        if event["ph"] == "M":
            if event["name"] not in ("process_name", "thread_name") or not isinstance(event["args"]["name"], str):
                problems.append(f"no metadata: {event}")
        elif event["ph"] == "X":
            if not (event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["args"], dict)):
                problems.append(f"no time: {event}")
            threads[event["pid"], event["tid"]].append(event)
        else:
            problems.append(f"unknown: {event}")
    for events in threads.values():
        ends: list[float] = []
        for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-6:
                ends.pop()
            if ends and event["ts"] + event["dur"] > ends[-1] + 1e-6:
                problems.append(f"neither within another nor apart: {event}")
            ends.append(event["ts"] + event["dur"])
    return problems


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_valid(kind: str) -> None:
    found = trace(document(kind))
    assert broken_rules(found) == []
    named = {(event["pid"], event["tid"]) for event in found["traceEvents"] if event["name"] == "thread_name"}
    used = {(event["pid"], event["tid"]) for event in found["traceEvents"] if event["ph"] == "X"}
    assert used <= named
    times = [event["ts"] for event in found["traceEvents"] if event["ph"] == "X"]
    assert times == sorted(times)
    assert bool(times) == (kind != "nothing")


def test_broken_rules_are_seen() -> None:
    event = {"name": "a", "ph": "X", "pid": 1, "tid": 1, "ts": 0.0, "dur": 2.0, "args": {}}
    assert broken_rules({"traceEvents": [event, {**event, "ts": 1.0, "dur": 1.0}]}) == []
    assert broken_rules({"traceEvents": [event, {**event, "ts": 1.0}]})
    assert broken_rules({"traceEvents": [{**event, "ts": -1.0}]})
    assert broken_rules({"traceEvents": [{**event, "ph": "?"}]})


def test_spans_that_touch_stay_apart_after_rounding() -> None:
    """As they come from a recording: nanoseconds of a late clock, less an origin, in floating point."""
    found = document("data-bound")
    now_ns, spans = 5_123_456_789_123, []
    for number in range(2000):
        duration_ns = 100_000 + 7919 * number % 99_991
        now_ns -= number % 3  # and some that overlap by a few
        row = {"batch": number, "worker": 0, "stage": "read", "start_s": (now_ns - 5_000_000_000_077) * 1e-9}
        spans.append({**row, "duration_s": duration_ns * 1e-9})
        now_ns += duration_ns
    found["spans"] = spans
    result = trace(found)
    assert broken_rules(result) == []
    assert len({event["tid"] for event in of(result, "stage")}) == 1


def of(found: dict[str, Any], kind: str) -> list[Event]:
    return [event for event in found["traceEvents"] if event.get("cat") == kind]


def test_every_step_gap_and_span_is_there() -> None:
    given = document("data-bound")
    found = trace(given)
    assert len(of(found, "step")) == len(given["steps"]["start_s"]) == 480
    assert len(of(found, "stage")) == len(given["spans"]) == 600
    gaps = [event["args"]["gap_ms"] for event in of(found, "gap")]
    assert gaps == pytest.approx([1e3 * gap for gap in given["steps"]["gap_s"] if gap])
    assert sum(event["dur"] for event in of(found, "stage")) == pytest.approx(
        1e6 * sum(span["duration_s"] for span in given["spans"]), rel=1e-6
    )
    names = {event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"}
    assert {"steps", "loop in next()", "GPU waits for data", "main", "worker 0", "worker 1"} <= names


def test_gaps_lie_within_the_wait_of_their_step() -> None:
    found = trace(document("data-bound"))
    for step, wait, gap in zip(of(found, "step"), of(found, "wait"), of(found, "gap"), strict=True):
        assert step["ts"] == wait["ts"] <= gap["ts"] + 1e-3
        assert gap["ts"] + gap["dur"] == pytest.approx(wait["ts"] + wait["dur"], abs=2e-3)


def test_what_was_not_measured_is_not_drawn() -> None:
    found = trace(document("host clock"))
    assert of(found, "gap") == []
    assert len(of(found, "wait")) == 480
    given = document("data-bound")
    given["steps"]["step_s"][3] = None
    assert len(of(trace(given), "step")) == 479
    assert trace(document("nothing"))["traceEvents"] == []
