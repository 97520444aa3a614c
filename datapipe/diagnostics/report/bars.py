"""Bars: shares of stages, parts of a step, and what remedies would bring. Pure; each bar's figure stands beside it."""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.diagnostics.bootstrap import Interval
from datapipe.diagnostics.document import AppliedRemedy, Fault, Remedies
from datapipe.diagnostics.instruction import Instruction, Snippet
from datapipe.diagnostics.report import words
from datapipe.diagnostics.report.axis import Axis
from datapipe.diagnostics.report.markup import Markup, element, join
from datapipe.diagnostics.verdict import Verdict

_SIZE, _HEIGHT = 1000, 20
STAGES = frozenset(
    [
        "read",
        "decode",
        "transform",
        "augment",
        "collate",
        "transfer",
        "pin",
        "copy",
        "sampler",
        "plan",
        "cores",
        "startup",
        "idle",
        "wait",
    ]
)  # those with a colour of their own


def stage_class(stage: str) -> str:
    return f"stage-{stage}" if stage in STAGES else "stage-other"


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Of (class, name)."""
    return element("ul", (element("li", element("span", class_=f"swatch {one}"), name) for one, name in entries), class_="legend")


def stage_bars(attribution: Fault) -> Markup:
    """A row per stage: name, what it stands for, bar, share, seconds."""
    rows = [
        element(
            "tr",
            element("th", words.stage_name(stage), _note(words.meaning(stage.name)), scope="row"),
            element("td", _bar(stage.share or 0.0, stage_class(stage.name)), class_="bar"),
            element("td", words.percent(stage.share), class_="number"),
            element("td", words.seconds(stage.wait_s), class_="number"),
        )
        for stage in attribution.stages
    ]
    head = element("tr", *(element("th", name, scope="col") for name in ("Stage", "Share of the waiting", "", "Waited")))
    return element("table", element("thead", head), element("tbody", rows), class_="bars")


def step_parts(verdict: Verdict) -> Markup | None:
    """What a mean step consists of, as one bar; None where it was not measured."""
    step_s, data_s = verdict.figures.step_s, verdict.figures.data_s
    if not step_s or data_s is None:
        return None
    copy_s, fetch_s = verdict.figures.copy_s or 0.0, verdict.figures.fetch_s or 0.0
    who = (
        "the rest: the GPU at work, or waiting for other than data" if verdict.is_device else "the rest: the loop outside next()"
    )
    parts = [
        ("part-wait", "waiting for data", max(0.0, data_s - copy_s)),
        ("part-copy", "copies from the host", copy_s),
        ("part-fetch", "fetching a batch that was ready", fetch_s),
        ("part-work", who, max(0.0, step_s - data_s - fetch_s)),
    ]
    parts = [part for part in parts if part[2] >= 0.0005 * step_s]
    axis, start_s, shapes = Axis(0.0, sum(part[2] for part in parts), _SIZE), 0.0, []
    for name, _, length_s in parts:
        x = axis.at(start_s)
        shapes.append(element("rect", x=x, y=0, width=axis.at(start_s + length_s) - x, height=_HEIGHT, class_=name))
        start_s += length_s
    labels = [(name, f"{label}: {words.seconds(length_s)} ({length_s / step_s:.0%})") for name, label, length_s in parts]
    return join(_svg(shapes, "parts", ", ".join(label for _, label in labels)), legend(labels))


def what_if_bars(what_if: Remedies, applied: AppliedRemedy | None, waiting: Interval | None) -> Markup:
    """A row per remedy, the best first: its step now measured, or predicted with its interval; how it is done.

    `waiting`: for data, as it was measured.
    """
    measured_s = what_if.measured_step_s
    highest = max(
        [one.step_s.high for one in what_if.best_first + what_if.within_noise]
        + [measured_s or 0.0, (applied and applied.measured_step_s) or 0.0]
    )
    axis = Axis(0.0, highest, _SIZE)
    rows = []
    if measured_s is not None:
        rows.append(
            _row("as it is", _span_bar(axis, measured_s, None, "part-other", waiting=waiting), "measured", measured_s, "", None)
        )
    for one in what_if.best_first + what_if.within_noise:
        is_best = one.name == what_if.best
        was_applied = applied is not None and applied.remedy == one.name
        mark_s = applied.measured_step_s if applied is not None and was_applied else None
        name = "part-best" if is_best else "part-replayed" if one in what_if.within_noise else "part-other"
        chart = _span_bar(axis, one.step_s.value, one.step_s, name, mark_s, waiting=one.starvation)
        gain = "" if one.gain is None else words.change(one.gain)
        notes = [
            "applied: measured " + words.seconds(mark_s) if mark_s is not None else None,
            "not recommended" if one in what_if.within_noise else None,
            "--apply tries it without an edit" if one.needs_edit is False else None,
            "changes what is trained" if one.changes_results else None,
        ]
        note = ", ".join(filter(None, notes)) or None
        rows.append(
            _row(one.name, chart, words.seconds_range(one.step_s), None, gain, note, how=one.instruction, is_best=is_best)
        )
    names = ("Remedy", "Step", "", "Change")
    head = element("tr", *(element("th", name, scope="col") for name in names))
    return element("table", element("thead", head), element("tbody", rows), class_="bars what-if")


def _row(
    name: str,
    chart: Markup,
    figure: str,
    value_s: float | None,
    gain: str,
    note: str | None,
    *,
    how: Instruction | None = None,
    is_best: bool = False,
) -> Markup:
    steps = _how(how) if how is not None and (how.code or how.note) else None
    row = element(
        "tr",
        element("th", words.short(name), element("span", "best", class_="badge") if is_best else None, _note(note), scope="row"),
        element("td", chart, class_="bar"),
        element("td", words.seconds(value_s) + " " if value_s is not None else None, figure, class_="number"),
        element("td", gain, class_="number"),
        class_=" ".join(filter(None, ["best" if is_best else None, "explained" if steps else None])) or None,
    )
    return join(row, steps)


def _how(how: Instruction) -> Markup:
    """How a remedy is carried out, over the whole width."""
    parts = [part for one in how.code for part in _snippet(one, how.where)]
    note = element("small", how.note, class_="note") if how.note else None
    return element("tr", element("td", element("div", parts, note, class_="how"), colspan=4), class_="how")


def _snippet(snippet: Snippet, where: str | None) -> tuple[Markup, Markup]:
    """Where code goes, and the code, which alone is copied; the prompt of a shell is only drawn."""
    is_shell = snippet.language == "shell"
    place = "in a shell" if is_shell else f"in {words.short(where)}" if where else "in the script"
    lines = [part for line in snippet.text.splitlines() for part in (Markup("<br>"), line)][1:]
    return element("small", place), element("code", lines, class_="shell" if is_shell else None)


def _span_bar(
    axis: Axis, value: float, span: Interval | None, name: str, mark: float | None = None, *, waiting: Interval | None
) -> Markup:
    """A bar up to a value, its head the share of waiting; a whisker over its interval, and a mark where the truth was
    found to lie."""
    shapes = [element("rect", x=0, y=3, width=axis.at(value), height=_HEIGHT - 6, class_=name)]
    if waiting is not None:
        shapes.append(element("rect", x=0, y=3, width=axis.at(value * waiting.value), height=_HEIGHT - 6, class_="part-wait"))
    label = words.seconds(value)
    if span is not None:
        low, high = axis.at(span.low), axis.at(span.high)
        shapes.append(element("rect", x=low, y=_HEIGHT // 2 - 1, width=max(1, high - low), height=2, class_="whisker"))
        shapes += [element("rect", x=max(0, x - 1), y=5, width=2, height=_HEIGHT - 10, class_="whisker") for x in (low, high)]
        label = words.seconds_range(span)
    if mark is not None:
        shapes.append(element("rect", x=min(axis.at(mark), _SIZE - 4), y=0, width=4, height=_HEIGHT, class_="mark"))
        label += f", measured {words.seconds(mark)}"
    return _svg(shapes, "track", label)


def _bar(share: float, name: str) -> Markup:
    shape = element("rect", x=0, y=3, width=Axis(0.0, 1.0, _SIZE).at(share), height=_HEIGHT - 6, class_=name)
    return _svg([shape], "track", f"{share:.1%}")


def _svg(shapes: Sequence[Markup], name: str, label: str) -> Markup:
    return element(
        "svg",
        shapes,
        class_=name,
        viewBox=f"0 0 {_SIZE} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def _note(text: str | None) -> Markup | None:
    return None if text is None else element("small", text)
