"""Steps over time: how long each took, and how much of it went by waiting for data. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from datapipe.diagnostics.document import StepRow
from datapipe.diagnostics.report import words
from datapipe.diagnostics.report.axis import Axis, quantile, ticks
from datapipe.diagnostics.report.bars import legend
from datapipe.diagnostics.report.markup import Markup, element, join
from datapipe.diagnostics.report.plot import WIDTH, plot

_HEIGHT, _STRIP = 200, 10
_PHASES = {"warm-up": "phase-warm-up", "edge": "phase-edge", "evaluation": "phase-evaluation"}
_STEADY = "steady"


def step_chart(steps: Sequence[StepRow], *, on_device: bool) -> Markup | None:
    """None where there is nothing to draw."""
    rows = [row for row in steps if row.step_s is not None]
    if not rows:
        return None
    start_s = rows[0].start_s
    ends = _ends(rows)
    axis = Axis(start_s, max(ends), WIDTH)
    lengths = [row.step_s or 0.0 for row in rows]
    # A few slow steps, the first ones above all, would make the others too small to be seen.
    top_s = min(1.1 * max(lengths), 1.3 * quantile(lengths, 0.97)) or 1e-6
    up = Axis(0.0, top_s, _HEIGHT)
    waits = [row.gap_s if on_device else row.host_wait_s for row in rows]
    names = {phase: _PHASES.get(phase, "phase-other") for phase in (row.phase for row in rows) if phase not in (None, _STEADY)}
    shapes = [_line(up.at(value)) for value in ticks(0.0, top_s, num=5)[1:]]
    shapes.append(element("path", d=_columns(rows, ends, axis, lambda place: up.at(lengths[place])), class_="step"))
    shapes.append(element("path", d=_columns(rows, ends, axis, lambda place: up.at(waits[place] or 0.0)), class_="wait"))
    wait = "the GPU waits for data" if on_device else "the loop waits in next()"
    shapes += _shades(rows, ends, axis)  # over the steps, which may be higher than the chart
    entries = [("step", "step"), ("wait", f"of it: {wait}"), *((one, words.short(phase, 40)) for phase, one in names.items())]
    table = ";".join(_numbers(row, start_s, list(names)) for row in rows)
    drawing = plot(
        shapes,
        name="steps",
        label=f"{len(rows)} steps over {words.seconds(max(ends) - start_s)}",
        axis=Axis(0.0, max(ends) - start_s, WIDTH),
        height=_HEIGHT,
        side=[(_HEIGHT - up.at(value), words.seconds(value)) for value in ticks(0.0, top_s, num=5)[1:]],
        data_steps=table,
        data_phases="|".join(words.plain(phase).replace("|", "/") for phase in names),
    )
    return join(drawing, legend(entries), element("p", _notes(lengths, waits, top_s), class_="note"))


def _notes(lengths: Sequence[float], waits: Sequence[float | None], top_s: float) -> str:
    notes = []
    num_cut = sum(length > top_s for length in lengths)
    if num_cut:
        which = "1 step is" if num_cut == 1 else f"{num_cut} steps are"
        notes.append(f"{which} longer than the chart is high; the longest took {words.seconds(max(lengths))}.")
    num_unknown = sum(wait is None for wait in waits)
    if num_unknown:
        notes.append(
            f"Of {num_unknown} {'step' if num_unknown == 1 else 'steps'} the waiting was not measured, and is not drawn."
        )
    return " ".join(notes)


def _ends(rows: Sequence[StepRow]) -> list[float]:
    """Where each step's column ends: where the next begins, as steps may have been left out between them, but not
    across a pause."""
    spacings = [after.start_s - before.start_s for before, after in pairwise(rows)]
    usual = quantile(spacings, 0.5) if spacings else 0.0
    ends = [min(after.start_s, before.start_s + max(before.step_s or 0.0, 1.5 * usual)) for before, after in pairwise(rows)]
    return [*ends, rows[-1].start_s + (rows[-1].step_s or 0.0)]


def _columns(rows: Sequence[StepRow], ends: Sequence[float], axis: Axis, height_of: Callable[[int], int]) -> str:
    """A filled outline of columns that stand side by side."""
    parts, at, level = [f"M0 {_HEIGHT}"], 0, 0
    for place, row in enumerate(rows):
        left, right, height = axis.at(row.start_s), axis.at(ends[place]), height_of(place)
        if left > at:  # a pause
            parts.append(f"V{_HEIGHT}H{left}")
            level = 0
        if height != level:
            parts.append(f"V{_HEIGHT - height}")
        parts.append(f"H{right}")
        at, level = right, height
    return "".join([*parts, f"V{_HEIGHT}Z"])


def _shades(rows: Sequence[StepRow], ends: Sequence[float], axis: Axis) -> list[Markup]:
    """One for each stretch of steps of one phase that is not the steady one."""
    shades, first = [], 0
    for place in range(1, len(rows) + 1):
        if place < len(rows) and rows[place].phase == rows[first].phase:
            continue
        phase = rows[first].phase
        if phase not in (None, _STEADY):
            left, right = axis.at(rows[first].start_s), axis.at(ends[place - 1])
            name = _PHASES.get(phase or "", "phase-other")
            width = max(1, right - left)
            shades.append(element("rect", x=left, y=0, width=width, height=_HEIGHT, class_=f"{name} veil"))
            shades.append(element("rect", x=left, y=0, width=width, height=_STRIP, class_=name))
        first = place
    return shades


def _line(height: int) -> Markup:
    y = _HEIGHT - height
    return element("line", x1=0, x2=WIDTH, y1=y, y2=y, class_="grid")


def _numbers(row: StepRow, start_s: float, phases: Sequence[str | None]) -> str:
    """For the script: start in seconds; step, gap, host wait in milliseconds; number of the phase, -1 for steady."""
    times = ("" if value is None else f"{value * 1e3:.4g}" for value in (row.step_s, row.gap_s, row.host_wait_s))
    phase = phases.index(row.phase) if row.phase in phases else -1
    return ",".join([f"{row.start_s - start_s:.7g}", *times, str(phase)])
