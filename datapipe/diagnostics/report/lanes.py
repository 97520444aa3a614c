"""Spans of a worker on as many lines as it takes for none to lie over another. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from datapipe.diagnostics.document import Span

_TOUCH_S = 1e-6  # spans that overlap by less follow each other: their ends were rounded


@dataclass(frozen=True, slots=True)
class Lane:
    """`number`: of the worker's lanes, from 0. `worker`: None is the main process."""

    worker: int | None
    number: int
    spans: tuple[Span, ...]  # in order of time; none begins before the one before it ends, but for rounding


def lanes_of(spans: Sequence[Span]) -> list[Lane]:
    """By worker, the main process first; each span on the first lane that is free when it begins."""
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


def worker_name(worker: int | None) -> str:
    return "main" if worker is None else f"worker {worker}"
