"""Compute the page's drawings: bars of stages, of a mean step and of remedies, and the chart of steps over time. Pure.

A drawing is stretched to any width, so labels are text of the page, not of the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from datapipe.analysis.judge.bootstrap import Interval
from datapipe.analysis.judge.verdict import Verdict
from datapipe.diagnostics.document import AppliedRemedy, Outlook, Remedies, StepRow
from datapipe.diagnostics.report import words
from datapipe.diagnostics.report.grouping import grouped

BAR_WIDTH, BAR_HEIGHT = 1000, 20  # units of a bar's drawing
CHART_WIDTH, CHART_HEIGHT = 20_000, 200  # units of the chart of steps; its height is in pixels too
_STRIP = 10  # height of the strip above steps that do not count
_NUM_TICKS = 6
_STAGES = {"read", "decode", "dataset", "transform", "augment", "collate", "transfer", "pin", "copy"}
_STAGES |= {"sampler", "plan", "cores", "lock", "startup", "idle", "wait"}  # those with a colour of their own
_PHASES = {"warm-up": "phase-warm-up", "edge": "phase-edge", "evaluation": "phase-evaluation"}
_STEADY = "steady"


@dataclass(frozen=True, slots=True)
class Axis:
    """A map from [low, high] to whole numbers from 0 to `size`; values outside go to the nearest end."""

    low: float
    high: float
    size: int

    def at(self, value: float) -> int:
        """Return the place of a value."""
        if self.high <= self.low:
            return 0
        return round(self.size * min(1.0, max(0.0, (value - self.low) / (self.high - self.low))))

    def share(self, value: float) -> float:
        """Return how far a value is on the way from low to high."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle in the units of its drawing; `name` is its CSS class."""

    x: int
    y: int
    width: int
    height: int
    name: str


@dataclass(frozen=True, slots=True)
class RectBar:
    """A drawing of rectangles, and a description in words."""

    rects: tuple[Rect, ...]
    label: str
    legend: tuple[tuple[str, str], ...] = ()  # (CSS class, name)


@dataclass(frozen=True, slots=True)
class RemedyRow:
    """A remedy's bar and the words next to it; `outlook` is None for the step as measured."""

    name: str
    bar: RectBar
    figure: str
    gain: str
    note: str
    is_best: bool
    outlook: Outlook | None


@dataclass(frozen=True, slots=True)
class StepChart:
    """The chart of steps over time."""

    label: str
    high: float  # seconds at the right edge
    grid: tuple[int, ...]  # heights of lines
    step_path: str
    wait_path: str
    shades: tuple[Rect, ...]  # over steps that do not count
    ticks: tuple[tuple[str, float], ...]  # (label, per cent of the width)
    side: tuple[tuple[str, int], ...]  # (label, pixels from the top)
    legend: tuple[tuple[str, str], ...]
    notes: str
    steps: str  # for the script: rows of `_numbers`
    phases: str  # for the script: names of phases


def stage_class(stage: str) -> str:
    """Return the CSS class of a stage."""
    return f"stage-{stage}" if stage in _STAGES else "stage-other"


def share_bar(share: float, name: str) -> RectBar:
    """Return a bar of a share of the width."""
    width = Axis(0.0, 1.0, BAR_WIDTH).at(share)
    return RectBar((Rect(0, 3, width, BAR_HEIGHT - 6, name),), f"{share:.1%}")


def step_parts(verdict: Verdict) -> RectBar | None:
    """Return the parts of a mean step as one bar; None if it was not measured."""
    figures = verdict.figures
    step_s, data_s = figures.step_s, figures.data_s
    if not step_s or data_s is None:
        return None
    copy_s, fetch_s = figures.copy_s or 0.0, figures.fetch_s or 0.0
    work = "the GPU at work, or waiting for other than data" if verdict.is_device else "the loop outside next()"
    parts = [
        ("part-wait", "waiting for data", max(0.0, data_s - copy_s)),
        ("part-copy", "copies from the host", copy_s),
        ("part-fetch", "fetching a batch that was ready", fetch_s),
        ("part-work", f"the rest: {work}", max(0.0, step_s - data_s - fetch_s)),
    ]
    parts = [part for part in parts if part[2] >= 0.0005 * step_s]
    axis, start_s, rects = Axis(0.0, sum(part[2] for part in parts), BAR_WIDTH), 0.0, []
    for name, _, length_s in parts:
        x = axis.at(start_s)
        rects.append(Rect(x, 0, axis.at(start_s + length_s) - x, BAR_HEIGHT, name))
        start_s += length_s
    legend = tuple((name, f"{label}: {words.seconds(length_s)} ({length_s / step_s:.0%})") for name, label, length_s in parts)
    return RectBar(tuple(rects), ", ".join(label for _, label in legend), legend)


def remedy_rows(remedies: Remedies, applied: AppliedRemedy | None, waiting: Interval | None) -> list[RemedyRow]:
    """Return a row per group of remedies, the best first, after the step as measured. `waiting`: for data, as measured."""
    measured_s = remedies.measured_step_s
    outlooks = remedies.best_first + remedies.within_noise
    apart = None if applied is None else applied.remedy
    groups = [(group, False) for group in grouped(remedies.best_first, apart=apart)]
    groups += [(group, True) for group in grouped(remedies.within_noise, apart=apart)]
    ends = [measured_s or 0.0, (applied and applied.measured_step_s) or 0.0]
    axis = Axis(0.0, max([one.step_s.high for one in outlooks] + ends), BAR_WIDTH)
    rows = []
    if measured_s is not None:
        bar = _remedy_bar(axis, measured_s, None, "part-other", waiting=waiting)
        rows.append(RemedyRow("as it is", bar, f"{words.seconds(measured_s)} measured", "", "", False, None))
    for group, is_noise in groups:
        one = group.first
        is_best = one.name == remedies.best
        mark_s = applied.measured_step_s if applied is not None and applied.remedy == one.name else None
        name = "part-best" if is_best else "part-replayed" if is_noise else "part-other"
        notes = [
            "applied: measured " + words.seconds(mark_s) if mark_s is not None else None,
            "not recommended" if is_noise else None,
            "--apply tries it without an edit" if one.needs_edit is False else None,
            "changes what is trained" if one.changes_results else None,
            "takes other machines" if one.needs_machines else None,
        ]
        bar = _remedy_bar(axis, one.step_s.value, one.step_s, name, mark_s, waiting=one.starvation)
        gain = "" if one.gain is None else words.change(one.gain)
        figure = words.seconds_range(one.step_s)
        rows.append(RemedyRow(group.name, bar, figure, gain, ", ".join(filter(None, notes)), is_best, one))
    return rows


def step_chart(steps: Sequence[StepRow], *, on_device: bool) -> StepChart | None:
    """Return the chart; None if there is nothing to draw."""
    rows = [row for row in steps if row.step_s is not None]
    if not rows:
        return None
    start_s, ends = rows[0].start_s, _ends(rows)
    axis = Axis(start_s, max(ends), CHART_WIDTH)
    lengths = [row.step_s or 0.0 for row in rows]
    # A few slow steps, especially the first ones, would make the others too small to see.
    top_s = min(1.1 * max(lengths), 1.3 * quantile(lengths, 0.97)) or 1e-6
    up = Axis(0.0, top_s, CHART_HEIGHT)
    waits = [row.gap_s if on_device else row.host_wait_s for row in rows]
    names = {phase: _PHASES.get(phase, "phase-other") for phase in (row.phase for row in rows) if phase not in (None, _STEADY)}
    wait = "the GPU waits for data" if on_device else "the loop waits in next()"
    along = Axis(0.0, max(ends) - start_s, CHART_WIDTH)
    levels = ticks(0.0, top_s, num=5)[1:]
    return StepChart(
        label=f"{len(rows)} steps over {words.seconds(max(ends) - start_s)}",
        high=along.high,
        grid=tuple(CHART_HEIGHT - up.at(value) for value in levels),
        step_path=_columns(rows, ends, axis, lambda place: up.at(lengths[place])),
        wait_path=_columns(rows, ends, axis, lambda place: up.at(waits[place] or 0.0)),
        shades=tuple(_shades(rows, ends, axis)),
        ticks=tuple(
            (f"{second:g} s", 100 * along.share(second))
            for second in ticks(along.low, along.high, num=_NUM_TICKS)
            if along.share(second) < 0.96
        ),
        side=tuple((words.seconds(value), CHART_HEIGHT - up.at(value)) for value in levels),
        legend=(
            ("step", "step"),
            ("wait", f"of it: {wait}"),
            *((name, words.short(phase, 40)) for phase, name in names.items()),
        ),
        notes=_notes(lengths, waits, top_s),
        steps=";".join(_numbers(row, start_s, list(names)) for row in rows),
        phases="|".join(words.plain(phase).replace("|", "/") for phase in names),
    )


def ticks(low: float, high: float, *, num: int) -> list[float]:
    """Return round values from low to high, `num` of them or a few less: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / num
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of `values`, which are not empty, does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _remedy_bar(
    axis: Axis, value: float, span: Interval | None, name: str, mark: float | None = None, *, waiting: Interval | None
) -> RectBar:
    """Return a bar up to a value, its head the share of waiting, with a whisker over its interval and a mark if measured."""
    rects = [Rect(0, 3, axis.at(value), BAR_HEIGHT - 6, name)]
    if waiting is not None:
        rects.append(Rect(0, 3, axis.at(value * waiting.value), BAR_HEIGHT - 6, "part-wait"))
    label = words.seconds(value)
    if span is not None:
        low, high = axis.at(span.low), axis.at(span.high)
        rects.append(Rect(low, BAR_HEIGHT // 2 - 1, max(1, high - low), 2, "whisker"))
        rects += [Rect(max(0, x - 1), 5, 2, BAR_HEIGHT - 10, "whisker") for x in (low, high)]
        label = words.seconds_range(span)
    if mark is not None:
        rects.append(Rect(min(axis.at(mark), BAR_WIDTH - 4), 0, 4, BAR_HEIGHT, "mark"))
        label += f", measured {words.seconds(mark)}"
    return RectBar(tuple(rects), label)


def _notes(lengths: Sequence[float], waits: Sequence[float | None], top_s: float) -> str:
    notes = []
    num_cut = sum(length > top_s for length in lengths)
    if num_cut:
        which = "1 step is" if num_cut == 1 else f"{num_cut} steps are"
        notes.append(f"{which} longer than the chart is high; the longest took {words.seconds(max(lengths))}.")
    num_unknown = sum(wait is None for wait in waits)
    if num_unknown:
        which = "step" if num_unknown == 1 else "steps"
        notes.append(f"Of {num_unknown} {which} the waiting was not measured, and is not drawn.")
    return " ".join(notes)


def _ends(rows: Sequence[StepRow]) -> list[float]:
    """Return where each step's column ends: where the next begins, unless there is a pause between them.

    Steps may have been left out between two rows.
    """
    spacings = [after.start_s - before.start_s for before, after in pairwise(rows)]
    usual = quantile(spacings, 0.5) if spacings else 0.0
    ends = [min(after.start_s, before.start_s + max(before.step_s or 0.0, 1.5 * usual)) for before, after in pairwise(rows)]
    return [*ends, rows[-1].start_s + (rows[-1].step_s or 0.0)]


def _columns(rows: Sequence[StepRow], ends: Sequence[float], axis: Axis, height_of: Callable[[int], int]) -> str:
    """Return the path of a filled outline of columns side by side."""
    parts, at, level = [f"M0 {CHART_HEIGHT}"], 0, 0
    for place, row in enumerate(rows):
        left, right, height = axis.at(row.start_s), axis.at(ends[place]), height_of(place)
        if left > at:  # a pause
            parts.append(f"V{CHART_HEIGHT}H{left}")
            level = 0
        if height != level:
            parts.append(f"V{CHART_HEIGHT - height}")
        parts.append(f"H{right}")
        at, level = right, height
    return "".join([*parts, f"V{CHART_HEIGHT}Z"])


def _shades(rows: Sequence[StepRow], ends: Sequence[float], axis: Axis) -> list[Rect]:
    """Return a veil and a strip for each stretch of steps of one phase that is not the steady one."""
    shades, first = [], 0
    for place in range(1, len(rows) + 1):
        if place < len(rows) and rows[place].phase == rows[first].phase:
            continue
        phase = rows[first].phase
        if phase not in (None, _STEADY):
            left = axis.at(rows[first].start_s)
            name, width = _PHASES.get(phase or "", "phase-other"), max(1, axis.at(ends[place - 1]) - left)
            shades += [Rect(left, 0, width, CHART_HEIGHT, f"{name} veil"), Rect(left, 0, width, _STRIP, name)]
        first = place
    return shades


def _numbers(row: StepRow, start_s: float, phases: Sequence[str | None]) -> str:
    """Return start in seconds; step, gap, host wait in milliseconds; number of the phase, -1 for steady."""
    times = ("" if value is None else f"{value * 1e3:.4g}" for value in (row.step_s, row.gap_s, row.host_wait_s))
    phase = phases.index(row.phase) if row.phase in phases else -1
    return ",".join([f"{row.start_s - start_s:.7g}", *times, str(phase)])
