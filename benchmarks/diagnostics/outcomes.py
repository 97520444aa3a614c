"""The findings of each cell compared with the truth, and their totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.diagnostics.cells import COLOR, Cell
from benchmarks.diagnostics.remedies import NOTHING, Forecast, forecast
from benchmarks.diagnostics.runs import Run
from datapipe.analysis.judge.analysis import analyze
from datapipe.analysis.judge.attribution import SAMPLER, TRANSFER
from datapipe.analysis.judge.breakdown import COLLATE, CORES, DECODE, OWN, READ, Stage
from datapipe.analysis.judge.fault import Fault
from datapipe.analysis.judge.ranks import join_ranks
from datapipe.analysis.judge.verdict import MODERATE, Verdict, VerdictKind
from datapipe.analysis.predict.remedies import Remedy

_ABOUT_DATA = (VerdictKind.DATA_BOUND, VerdictKind.SYNC_EXPOSED)
_ERROR_S, _ERROR_SHARE = 0.5e-3, 0.05
_AS_GOOD = 1.05  # a remedy is the right one if its step is at most this times the best one's
_PLANTED: dict[str, Stage] = {
    "read": READ,
    "rank": READ,
    "sync": READ,
    "lock": READ,
    "bandwidth": READ,
    "worker": READ,
    "decode": DECODE,
    "augment": ("transform", COLOR),
    "collate": COLLATE,
    "transfer": TRANSFER,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One run, measured and judged, and forecasts made from it."""

    cell: Cell
    verdict: Verdict
    measured_s: float | None  # data per step, over the steady steps
    logged_s: float | None  # the same steps by the device's log
    tail: float  # starvation of the second half, by the device's log
    tail_step_s: float
    slow_rank: int
    forecast: Forecast | None
    planted: Stage | None  # that is at fault; None: no planted fault makes it wait
    blamed: Stage | None  # by the diagnosis

    @property
    def is_starved(self) -> bool:
        return self.tail >= MODERATE

    @property
    def is_staged(self) -> bool:
        """Whether a stage is to be blamed: a planted fault starves the device, and enough was measured to tell anything."""
        return self.is_starved and self.planted is not None and self.measured_s is not None

    @property
    def is_measured_right(self) -> bool | None:
        if self.measured_s is None or self.logged_s is None:
            return None
        return abs(self.measured_s - self.logged_s) <= max(_ERROR_S, _ERROR_SHARE * self.logged_s)

    @property
    def is_judged_right(self) -> bool:
        """Data is blamed where the truth is 5% or more, and not where it is less, or the interval holds the truth."""
        share = self.verdict.figures.starvation
        if self.verdict.kind is VerdictKind.NOT_ENOUGH or share is None:
            return False
        is_right = (self.tail >= MODERATE) == (self.verdict.kind in _ABOUT_DATA)
        is_right_rank = self.slow_rank == 0 or self.tail < MODERATE
        return (is_right or share.low <= self.tail <= share.high) and is_right_rank


@dataclass(frozen=True, slots=True)
class Applied:
    """A forecast and the measured result, in seconds per step."""

    cell: Cell
    remedy: str
    predicted_s: float
    low_s: float
    high_s: float
    true_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.true_s - 1


def find(cell: Cell, runs: Sequence[Run]) -> Finding:
    """`runs`: of all ranks, the one with the fault first."""
    run = runs[0]
    examined = [analyze(one.process) for one in runs]
    slow_rank = join_ranks(examined).place
    chosen = examined[0].steady
    measured = run.steps["gap_s"] + np.nan_to_num(run.steps["copy_s"])
    return Finding(
        cell=cell,
        verdict=examined[0].verdict,
        measured_s=float(measured[chosen].mean()) if chosen.any() else None,
        logged_s=float(run.truth_s[chosen].mean()) if chosen.any() else None,
        tail=run.tail_starvation(),
        tail_step_s=run.tail_step_s(),
        slow_rank=slow_rank,
        forecast=forecast(cell, examined[0]),
        planted=_planted_stage(cell, run.waited_s),
        blamed=_blamed_stage(examined[slow_rank].attribution),
    )


def _planted_stage(cell: Cell, waited_s: Mapping[Stage, float]) -> Stage | None:
    """Where the time goes that the device waits; None where that is no planted fault's: no stall in the loader, or one
    that takes less than all else that making a batch takes.

    `waited_s`: the caller's waiting by what the awaited worker did, as the loader itself knows. Where that was mostly
    waiting for a core, and not computing on one, cores are what is missing.
    """
    stage = _PLANTED.get(cell.place)
    if stage is None or not cell.is_mostly_stall:
        return None
    if stage == TRANSFER and not cell.num_workers:  # nothing is moved: the caller's part is its own
        return SAMPLER
    return CORES if waited_s.get(CORES, 0.0) > waited_s.get(stage, 0.0) else stage


def _blamed_stage(found: Fault | None) -> Stage | None:
    """None: no stage was. What a Dataset computes itself counts as the decoding for which it stands here."""
    if found is None or found.fault is None:
        return None
    return DECODE if found.fault == OWN else (found.fault, found.detail)


def _in_short(stage: Stage | None) -> str:
    """A stage's kind, with the transform's name."""
    return "nothing" if stage is None else " ".join(filter(None, stage))


def apply_all(finding: Finding, apply: Callable[[Remedy, Cell], Run]) -> list[Applied]:
    """Every remedy that was forecast, in the loader itself."""
    assert finding.forecast is not None
    return [
        Applied(
            finding.cell,
            one.remedy.name,
            one.step_s.value,
            one.step_s.low,
            one.step_s.high,
            apply(one.remedy, finding.cell).tail_step_s(),
        )
        for one in finding.forecast.ranking.predictions
    ]


def is_top_right(finding: Finding, applied: Sequence[Applied]) -> bool:
    """`applied`: all remedies of the cell."""
    assert finding.forecast is not None
    true = {one.remedy: one.true_s for one in applied} | {NOTHING: finding.tail_step_s}
    return true[finding.forecast.best] <= _AS_GOOD * min(true.values())


def sum_up(findings: Sequence[Finding], applied: Sequence[Applied]) -> dict[str, Any]:
    """Shares of cells, and the errors of forecasts; with every miss by name."""
    of_cell: dict[str, list[Applied]] = {}
    for one in applied:
        of_cell.setdefault(one.cell.name, []).append(one)
    tops = {f.cell.name: is_top_right(f, of_cell[f.cell.name]) for f in findings if f.cell.name in of_cell}
    starved = {f.cell.name for f in findings if f.is_starved}
    unsettled = [f.cell.name for f in findings if f.is_measured_right is None]
    return {
        "num_cells": len(findings),
        "num_measured_right": sum(f.is_measured_right is True for f in findings),
        "num_unsettled": len(unsettled),
        "worst_error_ms": round(
            max(abs(f.measured_s - f.logged_s) for f in findings if f.measured_s is not None and f.logged_s is not None) * 1e3, 3
        ),
        "num_judged_right": sum(f.is_judged_right for f in findings),
        "num_without_stall": sum(f.cell.stall_ms == 0 for f in findings),
        "num_false_without_stall": sum(
            f.cell.stall_ms == 0 and f.tail < MODERATE and f.verdict.kind in _ABOUT_DATA for f in findings
        ),
        "verdicts": dict(sorted(Counter(f.verdict.kind.value for f in findings).items())),
        "predictions": _errors(applied),
        "of_starved": _errors([one for one in applied if one.cell.name in starved]),
        **_stages(findings),
        "num_ranked": len(tops),
        "num_top_right": sum(tops.values()),
        "misses": {
            "unsettled": unsettled,
            "measured": [_told(f) for f in findings if f.is_measured_right is False],
            "judged": [_told(f) for f in findings if not f.is_judged_right],
            "stage": [f"{f.cell.name}: {_in_short(f.blamed)}" for f in findings if f.is_staged and f.blamed != f.planted],
            "top_remedy": [name for name, is_right in tops.items() if not is_right],
            "predicted, by more than 20%": [
                f"{one.cell.name}: {one.remedy} {one.predicted_s * 1e3:.1f} ms, was {one.true_s * 1e3:.1f}"
                for one in applied
                if abs(one.error) > 0.2
            ],
        },
    }


def as_rows(applied: Sequence[Applied]) -> list[dict[str, Any]]:
    """Each prediction and its truth, in ms per step."""
    return [
        {"cell": one.cell.name, "remedy": one.remedy}
        | {name: round(getattr(one, f"{name}_s") * 1e3, 3) for name in ("predicted", "low", "high", "true")}
        for one in applied
    ]


def confusion(findings: Sequence[Finding]) -> dict[str, dict[str, int]]:
    """Planted stage -> blamed stage -> cells."""
    counts: dict[str, Counter[str]] = {}
    for one in sorted((one for one in findings if one.is_staged), key=lambda one: _in_short(one.planted)):
        counts.setdefault(_in_short(one.planted), Counter())[_in_short(one.blamed)] += 1
    return {planted: dict(blamed) for planted, blamed in counts.items()}


def _stages(findings: Sequence[Finding]) -> dict[str, Any]:
    staged = [f for f in findings if f.is_staged]
    starved = [f for f in findings if f.is_starved]
    return {
        "num_staged": len(staged),
        "num_stage_right": sum(f.blamed == f.planted for f in staged),
        "num_starved_without_a_planted_fault": sum(f.planted is None for f in starved),
        "num_starved_but_unsettled": sum(f.planted is not None and f.measured_s is None for f in starved),
        "stages": confusion(findings),
    }


def _errors(applied: Sequence[Applied]) -> dict[str, Any] | None:
    if not applied:
        return None
    errors = np.abs([one.error for one in applied])
    return {
        "num": len(applied),
        "median_error": round(float(np.median(errors)), 4),
        "p90_error": round(float(np.percentile(errors, 90)), 4),
        "worst_error": round(float(errors.max()), 4),
        "num_within_interval": sum(one.low_s <= one.true_s * 1.001 and one.true_s <= one.high_s * 1.001 for one in applied),
    }


def _told(finding: Finding) -> str:
    share = finding.verdict.figures.starvation
    found = "unknown" if share is None else f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}]"
    return f"{finding.cell.name}: {finding.verdict.kind.value}, {found}, second half {finding.tail:.1%}"
