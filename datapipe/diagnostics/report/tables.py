"""Tables of the page: figures, ranks, loaders, environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datapipe.diagnostics.document import LoaderRow, RankResult
from datapipe.diagnostics.report import words
from datapipe.diagnostics.report.markup import Child, Markup, element
from datapipe.diagnostics.verdict import Verdict

_WITHIN = "\u2003"  # wide spaces, for parts of what stands above
# Of a verdict's figures: what each is, for people. Seconds, shares, counts.
_SECONDS = {
    "step_s": "A step, from one request for a batch to the next",
    "data_s": _WITHIN + "of it waiting for data, copies included",
    "gap_s": 2 * _WITHIN + "of that in next()",
    "copy_s": 2 * _WITHIN + "of that in copies from the host that the loop asks for",
    "exposed_by_sync_s": 2 * _WITHIN + "of that, at most, exposed by the loop's waiting for the GPU",
    "fetch_s": _WITHIN + "idle in next() although the batch was ready: the host's time",
    "host_wait_s": "The host in next()",
    "hidden_s": _WITHIN + "of it hidden behind the GPU's work",
}
_SHARES = {
    "sync_share": "Steps in which the loop waited for the GPU",
    "idle_share": "Steps in which the GPU had run out of work before a batch was asked for",
    "ahead_share": "Steps in which the host was a whole step ahead of the GPU",
    "ready_share": "Steps in which the batch was ready when asked for",
}
_COUNTS = {
    "num_steps": "Steady steps that the figures rest on",
    "num_first": "Set apart: first steps of passes",
    "num_unsettled": "Set apart: steps before the loop had settled",
    "num_evaluation": "Set apart: steps of evaluation",
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


def figures_table(verdict: Verdict) -> Markup:
    """Every figure of a verdict; what was not measured says so."""
    rows = [("Share of time spent waiting for data", words.percent_range(verdict.starvation))]
    rows += [(label, words.seconds(getattr(verdict.figures, name))) for name, label in _SECONDS.items()]
    rows += [(label, words.percent(getattr(verdict.figures, name))) for name, label in _SHARES.items()]
    rows += [(label, _count(getattr(verdict.figures, name))) for name, label in _COUNTS.items()]
    return pairs_table(rows)


def ranks_table(ranks: Sequence[RankResult]) -> Markup:
    rows = [
        [
            _plain(row.rank),
            row.verdict.kind.value,
            words.percent_range(row.verdict.starvation),
            words.seconds(row.verdict.figures.step_s),
            _plain(row.num_steps),
            _plain(row.pid),
        ]
        for row in ranks
    ]
    return _table(("Rank", "Verdict", "Waiting for data", "Step", "Steps", "Process"), rows)


def loaders_table(loaders: Sequence[LoaderRow]) -> Markup:
    rows = [[*(_plain(getattr(loader, name)) for name in _LOADER), _use(loader)] for loader in loaders]
    return _table((*_LOADER.values(), "Use"), rows)


def pairs_table(rows: Sequence[tuple[str, str]]) -> Markup:
    """Names and what they are."""
    body = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in rows]
    return element("div", element("table", element("tbody", body), class_="pairs"), class_="sideways")


def environment_table(environment: Mapping[str, Any]) -> Markup:
    return pairs_table([(name, _plain(value)) for name, value in environment.items()])


def _table(names: Sequence[str], rows: Sequence[Sequence[Child]]) -> Markup:
    head = element("tr", *(element("th", name, scope="col") for name in names))
    body = [element("tr", *(element("td", element("div", cell)) for cell in row)) for row in rows]
    # Wide tables scroll by themselves, so that the page does not.
    return element("div", element("table", element("thead", head), element("tbody", body)), class_="sideways", tabindex=0)


def _use(loader: LoaderRow) -> str:
    if loader.is_evaluation is None:
        return "not known"
    use = "evaluation" if loader.is_evaluation else "training"
    return f"{use}, judged" if loader.is_judged else use


def _plain(value: object) -> str:
    match value:
        case None:
            return "not known"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name} {_plain(one)}" for name, one in value.items()) or "none"
        case list() | tuple():
            return ", ".join(map(_plain, value)) or "none"
        case _:
            return words.plain(value)


def _count(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,g}"
