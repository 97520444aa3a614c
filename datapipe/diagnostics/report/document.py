"""The diagnosis document, read into values: the only place here that knows its keys.

Unknown keys are passed over, so that a document may grow within its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from datapipe.diagnostics.bootstrap import Interval
from datapipe.diagnostics.instruction import Instruction, Snippet
from datapipe.diagnostics.report.values import (
    Applied,
    Diagnosis,
    Fault,
    Judgement,
    Level,
    LoaderTime,
    Need,
    Outlook,
    RankRow,
    RunTime,
    Saving,
    SpanRow,
    StageOfWait,
    StepRow,
    SyncRow,
    WhatIf,
    number,
)
from datapipe.errors import FormatError

VERSION = 1
Document: TypeAlias = Mapping[str, Any]  # JSON-safe


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
        duration_s=number(document.get("duration_s")),
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
        run=_run(run, document.get("loaders") or ()) if (run := document.get("run")) else None,
        levels=tuple(map(_level, document.get("regimes") or ())),
        applied=_applied(applied) if applied else None,
        environment=document.get("environment") or {},
        troubles=tuple(map(str, document.get("troubles") or ())),
    )


def _judgement(value: Mapping[str, Any]) -> Judgement:
    figures = value.get("figures") or {}
    for one in figures.values():
        if isinstance(one, float):
            number(one)
    starvation = _interval(figures.get("starvation"))
    reason = str(value.get("reason") or "")
    return Judgement(str(value["kind"]), value.get("severity"), reason, figures, starvation, value.get("rank"))


def _rank(row: Mapping[str, Any]) -> RankRow:
    return RankRow(row.get("rank"), row.get("pid"), row.get("num_steps"), _judgement(row["verdict"]))


def _fault(value: Mapping[str, Any]) -> Fault:
    stages = [
        StageOfWait(
            str(stage["name"]),
            stage.get("detail"),
            number(stage.get("wait_s")),
            number(stage.get("share")),
            number(stage.get("work_share")),
        )
        for stage in value.get("stages") or ()
    ]
    stages.sort(key=lambda stage: -(stage.share or 0.0))
    return Fault(
        tuple(stages),
        value.get("fault"),
        str(value.get("reason") or ""),
        value.get("worker"),
        number(value.get("head_of_line_s")),
    )


def _what_if(value: Mapping[str, Any]) -> WhatIf:
    now, best = value.get("now"), str(value["best"])
    return WhatIf(
        best=best,
        outlooks=tuple(sorted(map(_outlook, value["predictions"]), key=lambda one: one.name != best)),
        within_noise=tuple(map(_outlook, value.get("within_noise") or ())),
        now=_outlook(now) if now else None,
        measured_step_s=number(value.get("measured_step_s")),
        misfit=number(value.get("misfit")),
        needs=tuple(map(_need, value.get("needs") or ())),
    )


def _need(value: Mapping[str, Any]) -> Need:
    name = value.get("name")
    stage = StageOfWait(str(value["stage"]), None if name is None else f"{value['stage']} {name}", None, None)
    return Need(stage, value.get("where"), number(value["step_s"]), number(value.get("times_faster")))


def _outlook(value: Mapping[str, Any]) -> Outlook:
    step_s = _interval(value["step_s"])
    if step_s is None:
        raise ValueError(f"the remedy {value['name']!r} has no predicted step")
    gain, starvation = _interval(value.get("gain")), _interval(value.get("starvation"))
    return Outlook(
        str(value["name"]),
        _instruction(value),
        step_s,
        gain,
        starvation,
        value.get("needs_edit"),
        value.get("changes_results"),
    )


def _instruction(value: Mapping[str, Any]) -> Instruction:
    if "code" not in value:  # an older document: a sentence alone
        return Instruction(note=str(value.get("how") or ""))
    code = tuple(Snippet("shell" if one["language"] == "shell" else "python", str(one["text"])) for one in value["code"])
    where = value.get("where")
    return Instruction(code, None if where is None else str(where), str(value.get("note") or ""))


def _run(value: Mapping[str, Any], loaders: Sequence[Mapping[str, Any]]) -> RunTime:
    known = {loader.get("id"): loader for loader in loaders}
    rows = []
    for one in value.get("loaders") or ():
        loader, waited_s = known.get(one["id"], {}), float(one["first_wait_s"]) + float(one["wait_s"])
        is_evaluation, total_s = bool(one["is_evaluation"]), waited_s + float(one["work_s"])
        is_judged = bool(loader.get("is_judged")) and not is_evaluation
        rows.append(LoaderTime(loader.get("where"), is_evaluation, is_judged, waited_s, total_s))
    savings = (
        Saving(str(one["name"]), _instruction(one), float(one["saved_s"]), float(one["gain"]))
        for one in value.get("savings") or ()
    )
    parts = {str(name): float(seconds) for name, seconds in value["parts"].items()}
    return RunTime(float(value["wall_s"]), parts, tuple(rows), tuple(savings))


def _level(value: Mapping[str, Any]) -> Level:
    return Level(int(value["first_pass"]), int(value["last_pass"]), float(value["waiting"]), float(value["step_s"]))


def _applied(value: Mapping[str, Any]) -> Applied:
    predicted = number(value.get("predicted_step_s"))
    ends = value.get("low_s"), value.get("high_s")
    low, high = (predicted if end is None else end for end in ends)
    interval = None if predicted is None or low is None or high is None else Interval(predicted, low, high)
    return Applied(
        str(value["remedy"]),
        interval,
        number(value.get("measured_step_s")),
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
        *(map(number, columns.get(name) or nothing) for name in ("step_s", "gap_s", "host_wait_s")),
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
