"""The diagnosis: what was measured of a run, judged and explained, as one JSON-safe document.

`diagnosis.schema.json` describes it. Times are seconds; null is not measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datapipe.diagnostics.account import Saving, account_as_dict, account_of, savings_of
from datapipe.diagnostics.attach.settings import Applied
from datapipe.diagnostics.attach.watching import LoaderFacts
from datapipe.diagnostics.candidates import Candidates, Trials, argument_of, candidates_for, place_of, workload_from
from datapipe.diagnostics.diagnosis_steps import spans_of, steps_of
from datapipe.diagnostics.examination import Examination, examine
from datapipe.diagnostics.figures import figures_of
from datapipe.diagnostics.needs import needs_as_dicts, needs_of
from datapipe.diagnostics.recorded import Process
from datapipe.diagnostics.remedies import NO_REMEDY, NOTHING, WORTH_IT, Prediction, Ranking, rank_remedies, ranking_as_dict
from datapipe.diagnostics.timeline import STEP, Context
from datapipe.diagnostics.torch_stages.fault import Attribution
from datapipe.diagnostics.verdict import Kind, RankedVerdict, Verdict, judge_ranks, verdict_as_dict

VERSION = 1


@dataclass(frozen=True, slots=True)
class Command:
    """What was run, and how it ended."""

    argv: tuple[str, ...]
    exit_code: int | None  # None: it goes on, or was no command
    started_at: str  # ISO 8601, UTC
    duration_s: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The document, and what it rests on."""

    document: dict[str, Any]
    applied: dict[str, Applied] = field(default_factory=dict)  # of its predictions: those that need no edit of the script


Try = Callable[[Examination], Trials]


def no_trials(found: Examination) -> Trials:
    """Try nothing."""
    return Trials(reasons={"": "it was not tried"})


def diagnose(
    processes: Sequence[Process],
    command: Command,
    *,
    try_out: Try = no_trials,
    troubles: Sequence[str] = (),
) -> Diagnosis:
    """`processes`: by rank, as `recorded.read_processes` gives them; none where no loader was iterated.

    `try_out` is called where data is waited for, with the slowest rank, and measures what remedies are to be had.
    """
    found = [examine(process) for process in processes]
    ranked = (
        judge_ranks([one.verdict for one in found]) if found else RankedVerdict(0, _unmeasured(), (None,), _unmeasured().reason)
    )
    worst = found[ranked.rank] if found else None
    notes = [*troubles, *(f"rank {one.process.rank}: {text}" for one in found for text in one.process.troubles)]
    remedies, why, candidates = _remedies(worst, ranked, try_out)
    verdict = {**verdict_as_dict(ranked.verdict), "reason": ranked.reason}
    document = {
        "version": VERSION,
        "command": list(command.argv),
        "exit_code": command.exit_code,
        "started_at": command.started_at,
        "duration_s": command.duration_s,
        "clock": "cuda" if worst is not None and worst.figures.basis == "device" else "host",
        "verdict": {**verdict, "rank": worst.process.rank if worst else None},
        "ranks": [_rank_as_dict(one) for one in found],
        "loaders": [] if worst is None else [_loader_as_dict(facts, worst) for facts in worst.process.loaders.values()],
        "attribution": None if worst is None or worst.attribution is None else attribution_as_dict(worst.attribution),
        "why_no_attribution": worst.why_no_attribution if worst else ranked.reason,
        "remedies": remedies,
        "why_no_remedies": why,
        "run": None if worst is None else _run_as_dict(worst),
        "regimes": [] if worst is None or len(worst.regimes) < 2 else [dataclasses.asdict(one) for one in worst.regimes],
        "left_out": [{"name": name, "reason": reason} for name, reason in candidates.left_out.items()],
        "steps": None if worst is None else steps_of(worst),
        "spans": [] if worst is None else spans_of(worst),
        "syncs": {} if worst is None else {name: dataclasses.asdict(one) for name, one in worst.process.context.syncs.items()},
        "applied": None,
        "environment": dict(worst.process.environment) if worst else {},
        "troubles": [*notes, *_context_troubles(found)],
    }
    return Diagnosis(document, candidates.applied)


def attribution_as_dict(found: Attribution) -> dict[str, Any]:
    """JSON-safe. `wait_s` and shares are of the waits of the steady state."""
    return {
        "stages": [
            {
                "name": share.stage,
                "detail": None if share.name is None else f"{share.stage} {share.name}",
                "wait_s": None if share.of_wait is None else share.of_wait * found.wait_s,
                "share": share.of_wait,
                "work_share": share.of_work,
            }
            for share in found.shares
        ],
        "fault": found.stage,
        "detail": found.name,
        "reason": found.reason,
        "worker": found.worker,
        "wait_s": found.wait_s,
        "head_of_line_s": found.head_of_line_s,
    }


def _remedies(
    worst: Examination | None, ranked: RankedVerdict, try_out: Try
) -> tuple[dict[str, Any] | None, str | None, Candidates]:
    nothing = Candidates()
    if worst is None or ranked.verdict.kind in (Kind.NOT_ENOUGH, Kind.NOT_MEASURED):
        return None, f"{ranked.verdict.kind.value}: {ranked.verdict.reason}", nothing
    workload = workload_from(worst)
    if isinstance(workload, str):
        return None, workload, nothing
    starved = ranked.verdict.severity != "fine"
    trials = try_out(worst) if starved else Trials(reasons={"": "the training does not wait for data, so nothing was tried"})
    candidates = candidates_for(worst, workload, trials)
    ranking = rank_remedies(workload, candidates.remedies, measured_step_s=worst.of_loader.step_s)
    found = _ranking_as_dict(ranking, candidates, starved=starved)
    if starved and worst.attribution is not None and worst.loader is not None:
        places = {what: place_of(place) for what, place in worst.loader.places.items()}
        found["needs"] = needs_as_dicts(needs_of(workload, worst.attribution, places, scale=ranking.scale))
    return found, None, candidates


def _ranking_as_dict(ranking: Ranking, candidates: Candidates, *, starved: bool) -> dict[str, Any]:
    """With those apart whose gain may be chance, or too small to be worth a change."""
    found = ranking_as_dict(ranking)
    worth = {one.remedy.name for one in ranking.predictions if _is_worth_it(one, ranking)}
    changing = {one.remedy.name for one in ranking.predictions if one.remedy.changes_results}
    chosen = [
        {**one, "needs_edit": one["name"] not in candidates.applied, "changes_results": one["name"] in changing}
        for one in found["predictions"]
        if one["name"] in worth
    ]
    rest = [one for one in found["predictions"] if one["name"] not in worth]
    best = found["best"] if found["best"] in worth else NO_REMEDY if starved else NOTHING
    return {**found, "best": best, "predictions": chosen, "within_noise": rest, "needs": []}


def _is_worth_it(prediction: Prediction, ranking: Ranking) -> bool:
    doubt = abs(ranking.misfit or 0.0)
    return prediction.gain.low > 0 and prediction.gain.value >= max(WORTH_IT, doubt)


def _run_as_dict(found: Examination) -> dict[str, Any] | None:
    """Where the time of the slowest rank's run went, and what keeping workers would save of it."""
    account = account_of(found.process)
    if account is None:
        return None
    production = [profile.made.ready_ns - profile.made.start_ns for profile in found.profiles]
    savings = savings_of(found.process, account, float(np.mean(production)) * 1e-9 if production else None)
    return {**account_as_dict(account), "savings": [_saving_as_dict(one, found.process.loaders[one.loader]) for one in savings]}


def _saving_as_dict(saving: Saving, facts: LoaderFacts) -> dict[str, Any]:
    how = argument_of(facts, saving.name, "workers are started again for each pass")
    return {"name": saving.name, "saved_s": saving.saved_s, "gain": saving.gain, **how.as_dict()}


def _rank_as_dict(found: Examination) -> dict[str, Any]:
    process = found.process
    return {
        "rank": process.rank,
        "pid": process.pid,
        "verdict": verdict_as_dict(found.verdict),
        "num_steps": process.num_training_steps,
    }


def _loader_as_dict(facts: LoaderFacts, found: Examination) -> dict[str, Any]:
    steps = found.process.steps[found.process.steps["loader"] == facts.key]
    training = ~steps["is_evaluation"]
    return {
        "id": facts.key,
        "where": None if facts.site is None else place_of(facts.site),
        "kind": facts.kind,
        "dataset": None if facts.dataset is None else facts.dataset.rpartition(".")[2],
        "num_workers": facts.num_workers,
        "prefetch_factor": facts.prefetch_factor,
        "batch_size": facts.batch_size,
        "pin_memory": facts.pin_memory,
        "is_evaluation": bool(len(steps)) and not training.any(),
        "is_judged": found.loader is not None and found.loader.key == facts.key,
        "num_steps": len(steps),
    }


def _context_troubles(found: Sequence[Examination]) -> list[str]:
    notes = []
    for one in found:
        context: Context = one.process.context
        if context.num_elsewhere:
            what = f"{context.num_elsewhere} batches were taken by other threads than the first, and not measured"
            notes.append(f"rank {one.process.rank}: {what}")
    return notes


def _unmeasured() -> Verdict:
    reason = "no loader of torch.utils.data, datapipe or accelerate was seen: none was iterated, or a signal came first"
    return Verdict(Kind.NOT_MEASURED, None, reason, figures_of(np.zeros(0, STEP)))
