"""Build the rows of the page's tables: figures, ranks, loaders. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from datapipe.diagnostics.document import LoaderRow, RankResult
from datapipe.diagnostics.judge.verdict import Verdict
from datapipe.diagnostics.report import words

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
LOADER_NAMES = (*_LOADER.values(), "Use")
RANK_NAMES = ("Rank", "Verdict", "Waiting for data", "Step", "Steps", "Process")


def figure_rows(verdict: Verdict) -> list[tuple[str, str]]:
    """Return every figure of a verdict with its name; unmeasured ones are marked as such."""
    rows = [("Share of time spent waiting for data", words.percent_range(verdict.starvation))]
    rows += [(label, words.seconds(getattr(verdict.figures, name))) for name, label in _SECONDS.items()]
    rows += [(label, words.percent(getattr(verdict.figures, name))) for name, label in _SHARES.items()]
    rows += [(label, _count(getattr(verdict.figures, name))) for name, label in _COUNTS.items()]
    return rows


def rank_rows(ranks: Sequence[RankResult]) -> list[list[str]]:
    """Return the cells of each rank, under RANK_NAMES."""
    return [
        [
            in_words(row.rank),
            row.verdict.kind.value,
            words.percent_range(row.verdict.starvation),
            words.seconds(row.verdict.figures.step_s),
            in_words(row.num_steps),
            in_words(row.pid),
        ]
        for row in ranks
    ]


def loader_rows(loaders: Sequence[LoaderRow]) -> list[list[str]]:
    """Return the cells of each loader, under LOADER_NAMES."""
    return [[*(in_words(getattr(loader, name)) for name in _LOADER), _use(loader)] for loader in loaders]


def in_words(value: object) -> str:
    """Return a JSON value as text for people."""
    match value:
        case None:
            return "not known"
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name} {in_words(one)}" for name, one in value.items()) or "none"
        case list() | tuple():
            return ", ".join(map(in_words, value)) or "none"
        case _:
            return words.plain(value)


def _use(loader: LoaderRow) -> str:
    if loader.is_evaluation is None:
        return "not known"
    use = "evaluation" if loader.is_evaluation else "training"
    return f"{use}, judged" if loader.is_judged else use


def _count(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,g}"
