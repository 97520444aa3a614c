"""Diagnose a run: judge and explain its measurements in one document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from datapipe.diagnostics.account import account_of, savings_of
from datapipe.diagnostics.attach.settings import Applied
from datapipe.diagnostics.diagnosis_steps import spans_of, steps_of
from datapipe.diagnostics.document import (
    Document,
    LeftOut,
    LoaderRow,
    Outlook,
    RankResult,
    Remedies,
    RunTime,
    Saving,
)
from datapipe.diagnostics.judge.analysis import Analysis, analyze
from datapipe.diagnostics.judge.figures import figures_of
from datapipe.diagnostics.judge.verdict import Verdict, VerdictKind, judge_ranks
from datapipe.diagnostics.measure.recorded import Process
from datapipe.diagnostics.measure.timeline import STEP, Context
from datapipe.diagnostics.measure.watching import LoaderFacts
from datapipe.diagnostics.predict.candidates import Candidates, argument_of, candidates_for, place_of
from datapipe.diagnostics.predict.measured_workload import workload_from
from datapipe.diagnostics.predict.needs import needs_of, situation_of
from datapipe.diagnostics.predict.remedies import NO_REMEDY, NOTHING, Instruction, Prediction, Ranking, rank_remedies
from datapipe.diagnostics.trials.trying import Trials


@dataclass(frozen=True, slots=True)
class Command:
    """The command that was run, and how it ended."""

    argv: tuple[str, ...]
    exit_code: int | None  # None: it is still running, or there was no command
    started_at: str  # ISO 8601, UTC
    duration_s: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The document, and the remedies that can be applied automatically."""

    document: Document
    applied: dict[str, Applied] = field(default_factory=dict)  # the predicted remedies that need no edit of the script


Try = Callable[[Analysis], Trials]


def no_trials(found: Analysis) -> Trials:
    """Return empty trials, without trying anything."""
    return Trials(reasons={"": "it was not tried"})


def diagnose(
    processes: Sequence[Process],
    command: Command,
    *,
    try_out: Try = no_trials,
    troubles: Sequence[str] = (),
) -> Diagnosis:
    """Diagnose the processes of a run, in the order of ranks, as `recorded.read_processes` returns them; empty without a loader.

    If data is waited for, `try_out` is called with the slowest rank and measures the available remedies.
    """
    found = [analyze(process) for process in processes]
    worst, verdict = None, _unmeasured()
    if found:
        place, verdict = judge_ranks([one.verdict for one in found], [one.process.rank for one in found])
        worst = found[place]
    notes = [*troubles, *(f"rank {one.process.rank}: {text}" for one in found for text in one.process.troubles)]
    remedies, why, candidates = _remedies(worst, try_out)
    document = Document(
        command=command.argv,
        exit_code=command.exit_code,
        started_at=command.started_at,
        duration_s=command.duration_s,
        clock="cuda" if verdict.is_device else "host",
        verdict=verdict,
        ranks=tuple(_rank_result(one) for one in found),
        attribution=worst.attribution if worst else None,
        why_no_attribution=worst.why_no_attribution if worst else verdict.reason,
        remedies=remedies,
        why_no_remedies=why,
        left_out=tuple(LeftOut(name=name, reason=reason) for name, reason in candidates.left_out.items()),
        troubles=(*notes, *_context_troubles(found)),
    )
    if worst is not None:
        document = msgspec.structs.replace(document, **_of_slowest(worst))
    return Diagnosis(document, candidates.applied)


def _of_slowest(worst: Analysis) -> dict[str, Any]:
    """Return the parts of the document that are only about the slowest rank."""
    process = worst.process
    return {
        "loaders": tuple(_loader_row(facts, worst) for facts in process.loaders.values()),
        "run": _run_time(worst),
        "regimes": worst.regimes if len(worst.regimes) > 1 else (),
        "steps": steps_of(worst),
        "spans": tuple(spans_of(worst)),
        "syncs": dict(process.context.syncs),
        "environment": dict(process.environment),
    }


def _remedies(worst: Analysis | None, try_out: Try) -> tuple[Remedies | None, str | None, Candidates]:
    verdict, nothing = worst.verdict if worst else _unmeasured(), Candidates()
    if worst is None or verdict.kind in (VerdictKind.NOT_ENOUGH, VerdictKind.NOT_MEASURED):
        return None, f"{verdict.kind.value}: {verdict.reason}", nothing
    workload = workload_from(worst)
    if isinstance(workload, str):
        return None, workload, nothing
    starved = verdict.severity != "fine"
    trials = try_out(worst) if starved else Trials(reasons={"": "the training does not wait for data, so nothing was tried"})
    candidates = candidates_for(worst, workload, trials)
    ranking = rank_remedies(workload, candidates.remedies, measured_step_s=worst.of_loader.step_s)
    found = remedies_of(ranking, candidates, starved=starved)
    if starved and worst.attribution is not None and worst.loader is not None:
        places = {what: place_of(place) for what, place in worst.loader.places.items()}
        contention = candidates.contention
        situation = situation_of(
            worst.profiles,
            num_workers=worst.loader.num_workers or 0,
            has_own_sampler="sampler" in worst.loader.places,
            workers_wait=contention is not None and contention.grows,
        )
        needs = needs_of(workload, worst.attribution, places, situation=situation, scale=ranking.scale)
        found = msgspec.structs.replace(found, needs=tuple(needs))
    return found, None, candidates


def remedies_of(ranking: Ranking, candidates: Candidates, *, starved: bool) -> Remedies:
    """Return the predictions; those whose gain may be chance, or is too small to be worth a change, are listed separately."""
    best = ranking.best.remedy.name
    if starved and best == NOTHING:
        best = NO_REMEDY
    chosen = (
        _outlook(one, needs_edit=one.remedy.name not in candidates.applied, changes_results=one.remedy.changes_results)
        for one in ranking.worth_it
    )
    return Remedies(
        best=best,
        predictions=tuple(sorted(chosen, key=lambda one: one.name != best)),
        within_noise=tuple(_outlook(one) for one in ranking.predictions if one not in ranking.worth_it),
        now=_outlook(ranking.now),
        measured_step_s=ranking.measured_step_s,
        misfit=ranking.misfit,
        contention=candidates.contention,
    )


def _outlook(prediction: Prediction, *, needs_edit: bool | None = None, changes_results: bool | None = None) -> Outlook:
    return Outlook(
        name=prediction.remedy.name,
        **guide_of(prediction.remedy.how),
        step_s=prediction.step_s,
        gain=prediction.gain,
        starvation=prediction.starvation,
        needs_edit=needs_edit,
        changes_results=changes_results,
    )


def guide_of(how: Instruction) -> dict[str, Any]:
    """Return an instruction as the fields of a `document.Guided`."""
    return {"how": how.sentence(), "code": how.code, "where": how.where, "note": how.note or None}


def _run_time(found: Analysis) -> RunTime | None:
    """Return the account of the slowest rank's run, and what keeping workers would save."""
    account = account_of(found.recorded)
    if account is None:
        return None
    production = [profile.made.ready_ns - profile.made.start_ns for profile in found.profiles]
    saved = savings_of(found.recorded, account, float(np.mean(production)) * 1e-9 if production else None)
    savings = (_saving(found.process.loaders[loader], saved_s, account.wall_s) for loader, saved_s in saved)
    return RunTime(wall_s=account.wall_s, parts=account.parts(), loaders=account.loaders, savings=tuple(savings))


def _saving(facts: LoaderFacts, saved_s: float, wall_s: float) -> Saving:
    name = "persistent_workers=True"
    how = argument_of(facts, name, "workers are started again for each pass")
    return Saving(name=name, **guide_of(how), saved_s=saved_s, gain=saved_s / wall_s)


def _rank_result(found: Analysis) -> RankResult:
    process = found.process
    return RankResult(rank=process.rank, pid=process.pid, verdict=found.verdict, num_steps=process.num_training_steps)


def _loader_row(facts: LoaderFacts, found: Analysis) -> LoaderRow:
    steps = found.recorded.steps[found.recorded.steps["loader"] == facts.key]
    training = ~steps["is_evaluation"]
    return LoaderRow(
        id=facts.key,
        where=None if facts.site is None else place_of(facts.site),
        kind=facts.kind,
        dataset=None if facts.dataset is None else facts.dataset.rpartition(".")[2],
        num_workers=facts.num_workers,
        prefetch_factor=facts.prefetch_factor,
        batch_size=facts.batch_size,
        pin_memory=facts.pin_memory,
        is_evaluation=bool(len(steps)) and not training.any(),
        is_judged=found.loader is not None and found.loader.key == facts.key,
        num_steps=len(steps),
    )


def _context_troubles(found: Sequence[Analysis]) -> list[str]:
    notes = []
    for one in found:
        context: Context = one.process.context
        if context.num_elsewhere:
            what = f"{context.num_elsewhere} batches were taken by other threads than the first and were not measured"
            notes.append(f"rank {one.process.rank}: {what}")
    return notes


def _unmeasured() -> Verdict:
    reason = "no loader of torch.utils.data, datapipe or accelerate was iterated, or a signal ended the run first"
    return Verdict(VerdictKind.NOT_MEASURED, None, reason, figures_of(np.zeros(0, STEP)))
