"""Convert a diagnosis to a trace that chrome://tracing and ui.perfetto.dev show. Pure.

The JSON object format of "Trace Event Format" (Google, 2016): complete events ("X") with times in microseconds, and
metadata events ("M") that name processes and threads. Events of one thread are nested or disjoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from datapipe.diagnostics.document import Document, Readable, Span, StepRow, read_document
from datapipe.diagnostics.report.words import plain

_TOUCH_S = 1e-6  # spans that overlap by less follow each other, as their ends were rounded


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the trace. `number`: among the worker's lanes, from 0. `worker`: None is the main process."""

    worker: int | None
    number: int
    spans: tuple[Span, ...]  # in order of time; disjoint, except for rounding


def lanes_of(spans: Sequence[Span]) -> list[Lane]:
    """Return lanes by worker, the main process first; each span is on the first lane that is free when it begins."""
    by_worker: defaultdict[int | None, list[list[Span]]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_s):
        lanes = by_worker[span.worker]
        free = next((lane for lane in lanes if lane[-1].start_s + lane[-1].duration_s <= span.start_s + _TOUCH_S), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    workers = sorted(by_worker, key=lambda worker: (worker is not None, worker or 0))
    return [Lane(worker, number, tuple(lane)) for worker in workers for number, lane in enumerate(by_worker[worker])]


_LOOP, _LOADER = 1, 2  # processes of the trace: the training, and the work for it
_STEPS, _WAITS, _GAPS = 1, 2, 3  # threads of the first

Event = dict[str, Any]


def trace(diagnosis: Readable) -> dict[str, Any]:
    """Return the trace, JSON-safe: steps, the host's waits and the device's gaps, and the spans of each worker.

    The exact time of a gap within a step is not measured: a gap is drawn up to the end of the host's wait.
    Raises FormatError if `diagnosis` is not of this version.
    """
    read = read_document(diagnosis)
    steps = read.steps.rows if read.steps is not None else ()
    origin_s = min([row.start_s for row in steps] + [span.start_s for span in read.spans], default=0.0)
    lanes = lanes_of(read.spans)
    events = [*_step_events(steps, origin_s), *_span_events(lanes, origin_s)]
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    return {
        "traceEvents": [*_names(read, lanes), *events],
        "displayTimeUnit": "ms",
        "otherData": {"verdict": read.verdict.kind.value, "command": " ".join(map(plain, read.command)), "clock": read.clock},
    }


def _names(read: Document, lanes: Sequence[Lane]) -> Iterator[Event]:
    rank = "" if read.verdict.rank is None else f" of rank {read.verdict.rank}"
    if read.steps:
        yield _metadata("process_name", _LOOP, 0, f"training{rank}")
        for thread, name in ((_STEPS, "steps"), (_WAITS, "loop in next()"), (_GAPS, "GPU waits for data")):
            yield _metadata("thread_name", _LOOP, thread, name)
    if lanes:
        yield _metadata("process_name", _LOADER, 0, f"loader{rank}")
        for thread, lane in enumerate(lanes, 1):
            name = ("main" if lane.worker is None else f"worker {lane.worker}") + (f" ({lane.number + 1})" if lane.number else "")
            yield _metadata("thread_name", _LOADER, thread, name)


def _step_events(steps: Sequence[StepRow], origin_s: float) -> Iterator[Event]:
    for place, row in enumerate(steps):
        if row.step_s is None:
            continue
        # A step's length is the device's, its start the host's: the two clocks may disagree a little.
        end_s = row.start_s + row.step_s
        if place + 1 < len(steps):
            end_s = min(end_s, steps[place + 1].start_s)
        name = row.phase or "step"
        args = {"step_ms": row.step_s * 1e3, "loader": row.loader, "phase": row.phase}
        yield _event(name, "step", _LOOP, _STEPS, row.start_s - origin_s, end_s - row.start_s, args)
        wait_s = None if row.host_wait_s is None else min(row.host_wait_s, end_s - row.start_s)
        if wait_s:
            yield _event("next()", "wait", _LOOP, _WAITS, row.start_s - origin_s, wait_s, {"loader": row.loader})
        if row.gap_s:
            until_s = row.start_s + (wait_s if wait_s is not None else min(row.gap_s, end_s - row.start_s))
            gap_s = min(row.gap_s, until_s - row.start_s)
            args = {"gap_ms": row.gap_s * 1e3}
            yield _event("waits for data", "gap", _LOOP, _GAPS, until_s - gap_s - origin_s, gap_s, args)


def _span_events(lanes: Sequence[Lane], origin_s: float) -> Iterator[Event]:
    for thread, lane in enumerate(lanes, 1):
        free_s = 0.0
        for span in lane.spans:
            # If one ends as the next begins, rounding may have made them overlap a little.
            start_s = max(span.start_s - origin_s, free_s)
            free_s = max(start_s, span.start_s + span.duration_s - origin_s)
            yield _event(plain(span.stage), "stage", _LOADER, thread, start_s, free_s - start_s, {"batch": span.batch})


def _event(name: str, kind: str, process: int, thread: int, start_s: float, duration_s: float, args: dict[str, Any]) -> Event:
    # Whole nanoseconds: an end is rounded like the start of the next event, so that they still coincide.
    start_ns, end_ns = round(start_s * 1e9), round((start_s + max(0.0, duration_s)) * 1e9)
    known = {name: value for name, value in args.items() if value is not None}
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": max(0, start_ns) / 1e3,
        "dur": max(0, end_ns - max(0, start_ns)) / 1e3,
        "args": known,
    }


def _metadata(what: str, process: int, thread: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
