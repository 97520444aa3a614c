"""Render a diagnosis as one self-contained HTML page: no network, no other files. Pure.

The main facts are text and drawings that need no script; `page.js` adds the figures under the pointer.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from datapipe.analysis.judge.verdict import Verdict
from datapipe.analysis.predict.remedies import NO_REMEDY, NOTHING
from datapipe.diagnostics.ceilings.roofline import Ceiling, conclusions
from datapipe.diagnostics.document import Document, LoaderRow, RankResult, Readable, read_document
from datapipe.diagnostics.report import drawings, words
from datapipe.diagnostics.report.model_words import batch_size_lines, model_lines

_WITHIN = "\u2003"  # wide spaces, for parts of the row above
# The figures of a verdict in words. Seconds, shares, counts.
_SECONDS = {
    "step_s": "A step, from one request for a batch to the next",
    "data_s": _WITHIN + "of it waiting for data, copies included",
    "gap_s": 2 * _WITHIN + "of that in next()",
    "copy_s": 2 * _WITHIN + "of that in copies from the host that the loop requests",
    "exposed_by_sync_s": 2 * _WITHIN + "of that, at most, exposed by the loop's waiting for the GPU",
    "fetch_s": _WITHIN + "idle in next() although the batch was ready: the host's time",
    "host_wait_s": "The host in next()",
    "hidden_s": _WITHIN + "of it hidden behind the GPU's work",
}
_SHARES = {
    "sync_share": "Steps in which the loop waited for the GPU",
    "idle_share": "Steps in which the GPU had run out of work before a batch was requested",
    "ahead_share": "Steps in which the host was a whole step ahead of the GPU",
    "ready_share": "Steps in which the batch was ready when requested",
}
_COUNTS = {
    "num_steps": "Steady steps behind the figures",
    "num_first": "Excluded: first steps of passes",
    "num_unsettled": "Excluded: steps before the loop had settled",
    "num_evaluation": "Excluded: steps of evaluation",
    "updates_per_batch": "Optimiser steps per batch",
}
_LOADER = {
    "where": "Where",
    "kind": "Loader",
    "dataset": "Dataset",
    "batch_size": "Batch size",
    "num_workers": "Workers",
    "prefetch_factor": "Prefetch",
    "pin_memory": "Pinned",
    "num_steps": "Steps",
}
_LOADER_NAMES = (*_LOADER.values(), "Use")
_RANK_PARTS = {"others_s": "For other ranks", "forward_s": "Forward", "backward_s": "Backward", "loop_s": "Rest"}
_RANK_NAMES = ("Rank", "Verdict", "Waiting for data", *_RANK_PARTS.values(), "Step", "Steps", "Process")


def page(diagnosis: Readable) -> str:
    """Return the whole page, to be written as UTF-8.

    It is below 400 KB with 2,000 steps. Its own policy forbids it to load anything and to run any script but its own; names
    in the document are escaped. Raises FormatError if `diagnosis` is not of this version.
    """
    read = read_document(diagnosis)
    return _template().render(**_context(read))


def _context(read: Document) -> dict[str, Any]:
    """Return the values that the template names."""
    share, script = read.verdict.starvation, _resource("page.js")
    title = [words.badge(read), *([] if share is None or read.run_waiting else [words.percent(share.value)])]
    return {
        "read": read,
        "title": f"datapipe: {', '.join(title)}",
        "policy": _policy(script),
        "style": Markup(_resource("page.css")),
        "script": Markup(script),
        "command": shlex.join(read.command),
        "tiles": _tiles(read),
        "parts": drawings.step_parts(read.verdict),
        "fault": _fault(read),
        "syncs": [(name, f"{words.times(one.num)}, {words.seconds(one.host_s)} in all") for name, one in read.longest_syncs],
        "needs": _needs(read),
        "remedies": drawings.remedy_rows(read.remedies, read.applied, share) if read.remedies else [],
        "left_out": [f"{one.name}: {one.reason}" if one.name else one.reason for one in read.left_out],
        "ceilings": _ceilings(read),
        "ceiling_lines": conclusions(read.ceilings) if read.ceilings else [],
        "run_parts": _run_parts(read),
        "run_lines": _run_lines(read),
        "chart": drawings.step_chart(read.steps.rows, on_device=read.verdict.is_device) if read.steps else None,
        "ranks": _rank_rows(read.ranks),
        "further_lines": [*filter(None, [words.late_rank_line(read)]), *model_lines(read), *batch_size_lines(read)],
        "loaders": _loader_rows(read.loaders),
        "figures": _figure_rows(read.verdict),
        "run_facts": _run_facts(read),
        "environment": [(name, _in_words(value)) for name, value in read.environment.items()],
    }


def _tiles(read: Document) -> list[tuple[str, str, str]]:
    """Return the large figures at the top: (label, value, note)."""
    verdict, share = read.verdict, read.verdict.starvation
    step_s, rate = verdict.figures.step_s, read.samples_per_s
    tiles = []
    if read.run_waiting is not None:
        tiles.append(("waiting for data", f"{read.run_waiting.share:.0%}", "of the run"))
    if share is not None:
        label = "waiting for data" if read.run_waiting is None else "in steady steps"
        tiles.append((label, words.percent(share.value), f"{share.low:.1%} to {share.high:.1%}"))
    if step_s is not None:
        tiles.append(("a step", words.seconds(step_s), f"{1 / step_s:,.3g} steps/s" if step_s else ""))
    if rate is not None:
        tiles.append(("rate", f"{rate:,.0f}/s", "samples" if len(read.ranks) < 2 else "samples, of one rank"))
    if read.run_waiting is not None and read.run is not None and read.run.savings:
        saving = read.run.savings[0]
        tiles.append(("what to do", saving.name, f"the run {saving.gain:.0%} shorter"))
    elif read.remedies is not None:
        best = next((one for one in read.remedies.predictions if one.name == read.remedies.best), None)
        gain = f"steps {best.gain.value:.0%} shorter" if best and best.gain else ""
        tiles.append(("what to do", words.short(read.remedies.best, 60), gain))
    return tiles


def _fault(read: Document) -> str:
    """Return why the loop waited, in a few sentences."""
    fault = read.attribution
    if fault is None:
        return ""
    sentences = [words.plain(fault.reason)]
    if fault.worker is not None and f"Worker {fault.worker}" not in sentences[0]:
        sentences.append(f"Worker {fault.worker} is much slower than the others.")
    if (later := words.head_of_line(fault)) is not None:
        sentences.append(f"{later.capitalize()}.")
    return " ".join([*sentences, *filter(None, [words.contention_line(read)])])


def _needs(read: Document) -> list[str]:
    """Return what must become faster, and what to try for that."""
    needs = read.remedies.needs if read.remedies is not None else ()
    return [words.need_line(need) + (f". To try: {words.plain(need.advice)}." if need.advice else ".") for need in needs]


def _ceilings(read: Document) -> list[tuple[Ceiling, float | None]]:
    """Return the ceilings, and how much of each is used; None: it was not measured."""
    found = read.ceilings
    return [] if found is None else [(one, None if one.per_s is None else found.used(one.per_s)) for one in found.ceilings]


def _run_parts(read: Document) -> list[tuple[str, str]]:
    """Return where the time of the run went."""
    run = read.run
    if run is None or not run.wall_s:
        return []
    return [(name, f"{words.seconds(spent)}, {spent / run.wall_s:.0%}") for name, spent in run.parts.items()]


def _run_lines(read: Document) -> list[str]:
    """Return what would shorten the run outside of its steady steps, and which further loaders take part of it."""
    if read.run is None:
        return []
    return [*words.loader_lines(read), *(words.saving_line(saving, read.run.wall_s) for saving in read.run.savings)]


def _run_facts(read: Document) -> list[tuple[str, str]]:
    return [
        ("Command", shlex.join(read.command)),
        ("Started", words.when(read.started_at)),
        ("Took", words.seconds(read.duration_s)),
        ("Exit status", "not known" if read.exit_code is None else str(read.exit_code)),
        ("Clock", "the GPU's (CUDA events)" if read.clock == "cuda" else "the host's; no GPU was measured"),
    ]


def _figure_rows(verdict: Verdict) -> list[tuple[str, str]]:
    """Return every figure of a verdict with its name; unmeasured ones are marked as such."""
    rows = [("Share of time spent waiting for data", words.percent_range(verdict.starvation))]
    rows += [(label, words.seconds(getattr(verdict.figures, name))) for name, label in _SECONDS.items()]
    rows += [(label, words.percent(getattr(verdict.figures, name))) for name, label in _SHARES.items()]
    rows += [(label, _count(getattr(verdict.figures, name))) for name, label in _COUNTS.items()]
    return rows


def _rank_rows(ranks: Sequence[RankResult]) -> list[list[str]]:
    """Return the cells of each rank, under _RANK_NAMES."""
    return [
        [
            _in_words(row.rank),
            row.verdict.kind.value,
            words.percent_range(row.verdict.starvation),
            *(words.seconds(None if row.parts is None else getattr(row.parts, name)) for name in _RANK_PARTS),
            words.seconds(row.verdict.figures.step_s),
            _in_words(row.num_steps),
            _in_words(row.pid),
        ]
        for row in ranks
    ]


def _loader_rows(loaders: Sequence[LoaderRow]) -> list[list[str]]:
    """Return the cells of each loader, under _LOADER_NAMES."""
    return [[*(_in_words(getattr(loader, name)) for name in _LOADER), _use(loader)] for loader in loaders]


def _in_words(value: object) -> str:
    """Return a JSON value as text for people."""
    match value:
        case None:
            return "not known"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name} {_in_words(one)}" for name, one in value.items()) or "none"
        case list() | tuple():
            return ", ".join(map(_in_words, value)) or "none"
        case _:
            return words.plain(value)


def _use(loader: LoaderRow) -> str:
    if loader.is_evaluation is None:
        return "not known"
    use = "evaluation" if loader.is_evaluation else "training"
    return f"{use}, judged" if loader.is_judged else use


def _count(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,g}"


@functools.cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, finalize=_as_text)
    environment.globals |= {
        "words": words,
        "bar_width": drawings.BAR_WIDTH,
        "bar_height": drawings.BAR_HEIGHT,
        "chart_width": drawings.CHART_WIDTH,
        "chart_height": drawings.CHART_HEIGHT,
        "share_bar": drawings.share_bar,
        "stage_class": drawings.stage_class,
        "nothing": NOTHING,
        "no_remedy": NO_REMEDY,
        "rank_names": _RANK_NAMES,
        "loader_names": _LOADER_NAMES,
    }
    return environment.from_string(_resource("page.html.jinja"))


def _as_text(value: object) -> object:
    """Replace control characters and unpaired surrogates, which no page can hold."""
    return value if isinstance(value, Markup | int | float) else "" if value is None else words.plain(value)


def _resource(name: str) -> str:
    return (resources.files(__package__) / name).read_text("utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
