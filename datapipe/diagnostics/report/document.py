"""The diagnosis document, read into values: the only place here that knows its keys.

What was not measured is None. Unknown keys are passed over, so that a document may grow within its version.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from datapipe.diagnostics.bootstrap import Interval
from datapipe.errors import FormatError

VERSION = 1
Document: TypeAlias = Mapping[str, Any]  # JSON-safe


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict. `figures`: those of `diagnostics.figures`, by name."""

    kind: str
    severity: str | None
    reason: str
    figures: Mapping[str, Any]
    starvation: Interval | None
    rank: int | None  # whose verdict it is, where that is said

    @property
    def is_device(self) -> bool:
        """Whether it is the device's idle time that was measured, not the host's wait."""
        return bool(self.figures.get("basis") == "device")

    def figure(self, name: str) -> float | None:
        return _number(self.figures.get(name))


@dataclass(frozen=True, slots=True)
class StageOfWait:
    """A stage, and its part in the waiting: seconds, and a share of all of it."""

    name: str
    detail: str | None
    wait_s: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the loop waited. `stages`: the largest part first."""

    stages: tuple[StageOfWait, ...]
    fault: str | None
    reason: str
    worker: int | None
    head_of_line_s: float | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a remedy is predicted to bring: seconds per step, and how much shorter that is, as a share."""

    name: str
    how: str
    step_s: Interval
    gain: Interval | None
    starvation: Interval | None
    needs_edit: bool | None  # of the user's code; None: not known
    changes_results: bool | None  # what is trained is not quite the same


@dataclass(frozen=True, slots=True)
class WhatIf:
    """`best` is the name of a remedy, or "change nothing"."""

    best: str
    outlooks: tuple[Outlook, ...]  # worth a change: the best first, then as the document has them
    within_noise: tuple[Outlook, ...]  # whose gain may be chance, or is too small
    now: Outlook | None
    measured_step_s: float | None
    misfit: float | None  # of the replay of what was measured: 0.1 is 10% too long


@dataclass(frozen=True, slots=True)
class StepRow:
    start_s: float
    step_s: float | None
    gap_s: float | None
    host_wait_s: float | None
    phase: str | None
    loader: int | None


@dataclass(frozen=True, slots=True)
class SpanRow:
    start_s: float
    duration_s: float
    stage: str
    worker: int | None
    batch: int | None


@dataclass(frozen=True, slots=True)
class SyncRow:
    """What makes the loop wait for the device, as users call it."""

    name: str
    num: int
    host_s: float


@dataclass(frozen=True, slots=True)
class RankRow:
    rank: int | None
    pid: int | None
    num_steps: int | None
    verdict: Judgement


@dataclass(frozen=True, slots=True)
class Applied:
    """A remedy that was carried out, and what came of it."""

    remedy: str
    predicted_step_s: Interval | None
    measured_step_s: float | None
    starvation: Interval | None
    reason: str | None  # why it was not measured


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All of it."""

    command: tuple[str, ...]
    exit_code: int | None
    started_at: str | None
    duration_s: float | None
    clock: str  # "cuda", or "host" where no device was measured
    verdict: Judgement
    ranks: tuple[RankRow, ...]
    loaders: tuple[Mapping[str, Any], ...]
    attribution: Fault | None
    why_no_attribution: str | None
    what_if: WhatIf | None
    why_no_remedies: str | None
    left_out: tuple[tuple[str, str], ...]  # remedies that could not be tried, and why
    syncs: tuple[SyncRow, ...]  # the longest first
    steps: tuple[StepRow, ...]  # in order of time
    spans: tuple[SpanRow, ...]  # in order of time
    applied: Applied | None
    environment: Mapping[str, Any]
    troubles: tuple[str, ...]

    @property
    def slowest_rank(self) -> int | None:
        """Whose verdict is that of all: the one that waits most for data."""
        if self.verdict.rank is not None or not self.ranks:
            return self.verdict.rank
        return max(self.ranks, key=lambda row: row.verdict.figure("data_s") or 0.0).rank

    @property
    def batch_size(self) -> int | None:
        """Of the loader that was judged: where the document does not say which, the one that most steps were of."""
        judged = [loader for loader in self.loaders if loader.get("is_judged")]
        judged = judged or [loader for loader in self.loaders if not loader.get("is_evaluation")]
        loader = max(judged, key=lambda one: one.get("num_steps") or 0, default={})
        return loader.get("batch_size")

    @property
    def samples_per_s(self) -> float | None:
        """Of one rank, in the steady state."""
        step_s, batch_size = self.verdict.figure("step_s"), self.batch_size
        return batch_size / step_s if batch_size and step_s else None


def read_document(document: Document) -> Diagnosis:
    """Raises FormatError where this is no diagnosis, or one of another version."""
    if not isinstance(document, Mapping) or "version" not in document or "verdict" not in document:
        raise FormatError("this is no diagnosis: it has no version and verdict; `datapipe diagnose --out DIR` writes one")
    if document["version"] != VERSION:
        raise FormatError(
            f"the diagnosis is of version {document['version']!r}, this datapipe reads version {VERSION}; diagnose the run "
            "anew, or read it with the datapipe that wrote it"
        )
    try:
        return _read(document)
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise FormatError(f"the diagnosis is damaged ({type(exc).__name__}: {exc}); diagnose the run anew") from exc


def _read(document: Document) -> Diagnosis:
    remedies, attribution, applied = document.get("remedies"), document.get("attribution"), document.get("applied")
    return Diagnosis(
        command=tuple(map(str, document.get("command") or ())),
        exit_code=document.get("exit_code"),
        started_at=document.get("started_at"),
        duration_s=_number(document.get("duration_s")),
        clock=str(document.get("clock") or "host"),
        verdict=_judgement(document["verdict"]),
        ranks=tuple(_rank(row) for row in document.get("ranks") or ()),
        loaders=tuple(document.get("loaders") or ()),
        attribution=_fault(attribution) if attribution else None,
        why_no_attribution=document.get("why_no_attribution"),
        what_if=_what_if(remedies) if remedies else None,
        why_no_remedies=document.get("why_no_remedies"),
        left_out=tuple((str(one["name"]), str(one["reason"])) for one in document.get("left_out") or ()),
        syncs=_syncs(document.get("syncs") or {}),
        steps=_steps(document.get("steps") or {}),
        spans=_spans(document.get("spans") or ()),
        applied=_applied(applied) if applied else None,
        environment=document.get("environment") or {},
        troubles=tuple(map(str, document.get("troubles") or ())),
    )


def _judgement(value: Mapping[str, Any]) -> Judgement:
    figures = value.get("figures") or {}
    for one in figures.values():
        if isinstance(one, float):
            _number(one)
    starvation = _interval(figures.get("starvation"))
    reason = str(value.get("reason") or "")
    return Judgement(str(value["kind"]), value.get("severity"), reason, figures, starvation, value.get("rank"))


def _rank(row: Mapping[str, Any]) -> RankRow:
    return RankRow(row.get("rank"), row.get("pid"), row.get("num_steps"), _judgement(row["verdict"]))


def _fault(value: Mapping[str, Any]) -> Fault:
    stages = [
        StageOfWait(str(stage["name"]), stage.get("detail"), _number(stage.get("wait_s")), _number(stage.get("share")))
        for stage in value.get("stages") or ()
    ]
    stages.sort(key=lambda stage: -(stage.share or 0.0))
    return Fault(
        tuple(stages),
        value.get("fault"),
        str(value.get("reason") or ""),
        value.get("worker"),
        _number(value.get("head_of_line_s")),
    )


def _what_if(value: Mapping[str, Any]) -> WhatIf:
    now, best = value.get("now"), str(value["best"])
    return WhatIf(
        best=best,
        outlooks=tuple(sorted(map(_outlook, value["predictions"]), key=lambda one: one.name != best)),
        within_noise=tuple(map(_outlook, value.get("within_noise") or ())),
        now=_outlook(now) if now else None,
        measured_step_s=_number(value.get("measured_step_s")),
        misfit=_number(value.get("misfit")),
    )


def _outlook(value: Mapping[str, Any]) -> Outlook:
    step_s = _interval(value["step_s"])
    if step_s is None:
        raise ValueError(f"the remedy {value['name']!r} has no predicted step")
    gain, starvation = _interval(value.get("gain")), _interval(value.get("starvation"))
    return Outlook(
        str(value["name"]),
        str(value.get("how") or ""),
        step_s,
        gain,
        starvation,
        value.get("needs_edit"),
        value.get("changes_results"),
    )


def _applied(value: Mapping[str, Any]) -> Applied:
    predicted = _number(value.get("predicted_step_s"))
    ends = value.get("low_s"), value.get("high_s")
    low, high = (predicted if end is None else end for end in ends)
    interval = None if predicted is None or low is None or high is None else Interval(predicted, low, high)
    return Applied(
        str(value["remedy"]),
        interval,
        _number(value.get("measured_step_s")),
        _interval(value.get("starvation")),
        value.get("reason"),
    )


def _syncs(values: Mapping[str, Mapping[str, Any]]) -> tuple[SyncRow, ...]:
    rows = (SyncRow(name, int(one["num"]), float(one["host_s"])) for name, one in values.items())
    return tuple(sorted(rows, key=lambda row: -row.host_s))


def _steps(columns: Mapping[str, Sequence[Any]]) -> tuple[StepRow, ...]:
    starts = columns.get("start_s") or ()
    nothing = [None] * len(starts)
    rows = zip(
        starts,
        *(map(_number, columns.get(name) or nothing) for name in ("step_s", "gap_s", "host_wait_s")),
        *(columns.get(name) or nothing for name in ("phase", "loader")),
        strict=True,
    )
    return tuple(sorted((StepRow(*row) for row in rows), key=lambda row: row.start_s))


def _spans(values: Iterable[Mapping[str, Any]]) -> tuple[SpanRow, ...]:
    spans = [
        SpanRow(float(one["start_s"]), float(one["duration_s"]), str(one["stage"]), one.get("worker"), one.get("batch"))
        for one in values
    ]
    return tuple(sorted(spans, key=lambda span: span.start_s))


def _interval(value: Mapping[str, float] | None) -> Interval | None:
    return None if value is None else Interval(value["value"], value["low"], value["high"])


def _number(value: float | None) -> float | None:
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"{value} for a number; not measured is null")
    return float(value)
