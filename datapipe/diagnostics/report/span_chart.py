"""What each worker did when: spans of stages over time, a row per worker. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from datapipe.diagnostics.report import words
from datapipe.diagnostics.report.axis import Axis
from datapipe.diagnostics.report.bars import legend, stage_class
from datapipe.diagnostics.report.lanes import Lane, lanes_of, worker_name
from datapipe.diagnostics.report.markup import Markup, element, join
from datapipe.diagnostics.report.plot import WIDTH, plot
from datapipe.diagnostics.report.values import SpanRow

_LANE, _MARGIN = 20, 8  # heights: of a lane, and between workers
_MAX_LANES, _MAX_WORKERS = 12, 32


def span_chart(spans: Sequence[SpanRow], *, since_s: float | None) -> Markup | None:
    """None where there is nothing to draw. `since_s`: from when times are counted; None: from the first span."""
    if not spans:
        return None
    lanes = [lane for lane in lanes_of(spans) if lane.number < _MAX_LANES]
    workers = list(dict.fromkeys(lane.worker for lane in lanes))
    shown = set(workers[:_MAX_WORKERS])
    lanes = [lane for lane in lanes if lane.worker in shown]
    low = min(span.start_s for span in spans)
    high = max(span.start_s + span.duration_s for span in spans)
    since_s = low if since_s is None else since_s
    side, tops, y = [], [], 0
    for place, lane in enumerate(lanes):
        if not place or lanes[place - 1].worker != lane.worker:
            y += _MARGIN if place else 0
            side.append((float(y), worker_name(lane.worker)))
        tops.append(y)
        y += _LANE
    shapes = _paths(lanes, tops, Axis(low, high, WIDTH))
    stages = dict.fromkeys(span.stage for lane in lanes for span in lane.spans)
    drawing = plot(
        shapes,
        name="spans",
        label=f"{len(spans)} spans of {len(workers)} workers over {words.seconds(high - low)}",
        axis=Axis(low - since_s, high - since_s, WIDTH),
        height=y,
        side=side,
    )
    num_left_out = len(spans) - sum(len(lane.spans) for lane in lanes)
    note = f"{num_left_out} spans are left out: of further workers, or too many at once." if num_left_out else ""
    entries = [(stage_class(stage), words.short(stage, 40)) for stage in stages]
    return join(drawing, legend(entries), element("p", note, class_="note") if note else None)


def _paths(lanes: Sequence[Lane], tops: Sequence[int], axis: Axis) -> list[Markup]:
    """One per stage: a rectangle for each of its spans. Batches go along in an attribute, in the same order."""
    drawn: defaultdict[str, list[str]] = defaultdict(list)
    batches: defaultdict[str, list[str]] = defaultdict(list)
    for lane, top in zip(lanes, tops, strict=True):
        for span in lane.spans:
            left = axis.at(span.start_s)
            width = max(1, axis.at(span.start_s + span.duration_s) - left)
            drawn[span.stage].append(f"M{left} {top}h{width}v{_LANE - 2}h-{width}z")
            batches[span.stage].append("" if span.batch is None else str(span.batch))
    return [
        element(
            "path",
            d="".join(parts),
            class_=stage_class(stage),
            data_stage=words.plain(stage),
            data_batches=",".join(batches[stage]),
        )
        for stage, parts in drawn.items()
    ]
