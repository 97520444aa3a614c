"""Diagnose a recorded run: judge it, try and predict remedies, and tell it in one document; add what one gained when applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from datapipe.analysis.judge.analysis import Analysis, analyze
from datapipe.analysis.judge.bootstrap import Interval
from datapipe.analysis.judge.breakdown import places_of
from datapipe.analysis.judge.ranks import Joined, RankParts, join_ranks
from datapipe.analysis.judge.verdict import Verdict, VerdictKind, figures_of
from datapipe.analysis.predict.candidates import Candidates, candidates_for
from datapipe.analysis.predict.instructions import place_of
from datapipe.analysis.predict.measured_workload import workload_from
from datapipe.analysis.predict.needs import LoaderSituation, needs_of, sample_nbytes_of
from datapipe.analysis.predict.remedies import NO_REMEDY, WORTH_IT, Prediction, Ranking, rank_remedies
from datapipe.analysis.predict.workload import Workload
from datapipe.diagnostics.ceilings.of_training import roofline_of_training
from datapipe.diagnostics.details import details_of
from datapipe.diagnostics.document import AppliedRemedy, Document, LeftOut, Outlook, RankResult, Remedies, guide_of
from datapipe.instruments.attach.settings import Applied
from datapipe.instruments.measure.recorded import Process
from datapipe.instruments.measure.timeline import STEP
from datapipe.instruments.trials.results import Trials


@dataclass(frozen=True, slots=True)
class Command:
    """The command that was run, and how it ended."""

    argv: tuple[str, ...]
    exit_code: int | None  # None: it is still running, or there was no command
    started_at: str | None  # ISO 8601, UTC
    duration_s: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The document, and the remedies that can be applied automatically."""

    document: Document
    applied: dict[str, Applied] = field(default_factory=dict)  # the predicted remedies that need no edit of the script


_OF_WORKERS = "num_workers="
_NOT_STARVED = Trials(reasons={"": "the training does not wait for data, so nothing was tried"})

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
    judged = judge_ranks(processes)
    trials = _NOT_STARVED
    if judged.worst is not None and judged.is_starved:  # only then is trying worth its time
        trials = try_out(judged.worst)
    return told(judged, predict_remedies(judged, trials), command, troubles=troubles)


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a run, and what remedies are predicted from."""

    ranks: Sequence[Analysis]  # in order; none without a loader
    joined: Joined | None  # None without a loader
    verdict: Verdict
    workload: Workload | str  # of the slowest rank; a text says why there is none

    @property
    def worst(self) -> Analysis | None:
        """The slowest rank."""
        return None if self.joined is None else self.ranks[self.joined.place]

    @property
    def is_starved(self) -> bool:
        """Whether the training waits for data, and enough is known of it to predict remedies."""
        return self.why_no_remedies is None and self._worst_verdict.severity != "fine"

    @property
    def why_no_remedies(self) -> str | None:
        """Why nothing can be predicted; None if something can."""
        verdict = self._worst_verdict
        if self.worst is None or verdict.kind in (VerdictKind.NOT_ENOUGH, VerdictKind.NOT_MEASURED):
            return f"{verdict.kind.value}: {verdict.reason}"
        return self.workload if isinstance(self.workload, str) else None

    @property
    def _worst_verdict(self) -> Verdict:
        return self.verdict if self.worst is None else self.worst.verdict


@dataclass(frozen=True, slots=True)
class Predicted:
    """The remedies of a run; None, and why there are none."""

    remedies: Remedies | None
    why_none: str | None
    candidates: Candidates


def judge_ranks(processes: Sequence[Process]) -> Judged:
    """Judge the processes of a run, in the order of ranks."""
    found = [analyze(process) for process in processes]
    if not found:
        return Judged((), None, _unmeasured(), "there was no training")
    joined = join_ranks(found)
    return Judged(found, joined, joined.verdict, workload_from(found[joined.place]))


def predict_remedies(judged: Judged, trials: Trials) -> Predicted:
    """Predict what remedies bring, from what was judged and tried."""
    worst, workload = judged.worst, judged.workload
    if worst is None or isinstance(workload, str) or judged.why_no_remedies is not None:
        return Predicted(None, judged.why_no_remedies, Candidates())
    candidates = candidates_for(worst, workload, trials)
    ranking = rank_remedies(workload, candidates.remedies, measured_step_s=worst.of_loader.step_s)
    found = remedies_of(ranking, candidates, starved=judged.is_starved)
    if judged.is_starved and worst.attribution is not None and worst.loader is not None:
        code = {**worst.loader.places, **places_of(worst.profiles)}
        places = {what: place_of(place) for what, place in code.items()}
        if worst.attribution.holder is not None:
            places["lock"] = place_of(worst.attribution.holder.where)
        contention = candidates.contention
        situation = LoaderSituation(
            num_workers=worst.loader.num_workers or 0,
            sample_nbytes=sample_nbytes_of(worst.profiles),
            has_own_sampler="sampler" in worst.loader.places,
            workers_wait=contention is not None and contention.grows,
            video_library=worst.loader.video_library,
        )
        needs = needs_of(workload, worst.attribution, places, situation=situation, scale=ranking.scale)
        found = msgspec.structs.replace(found, needs=tuple(needs))
    return Predicted(found, None, candidates)


def told(judged: Judged, predicted: Predicted, command: Command, *, troubles: Sequence[str]) -> Diagnosis:
    """Return what was judged and predicted as a document. `troubles`: what went wrong before."""
    worst, joined, verdict, workload = judged.worst, judged.joined, judged.verdict, judged.workload
    document = Document(
        command=command.argv,
        exit_code=command.exit_code,
        started_at=command.started_at,
        duration_s=command.duration_s,
        clock="cuda" if verdict.is_device else "host",
        verdict=verdict,
        ranks=() if joined is None else tuple(map(_rank_result, judged.ranks, joined.parts)),
        straggler=None if joined is None else joined.straggler,
        in_turn_s=None if joined is None else joined.in_turn_s,
        model=next((one.process.model for one in judged.ranks if one.process.model is not None), None),
        attribution=worst.attribution if worst else None,
        why_no_attribution=worst.why_no_attribution if worst else verdict.reason,
        remedies=predicted.remedies,
        why_no_remedies=predicted.why_none,
        left_out=tuple(LeftOut(name=name, reason=reason) for name, reason in predicted.candidates.left_out.items()),
        troubles=(*troubles, *_troubles(judged.ranks)),
    )
    if worst is not None:
        ceilings = None if isinstance(workload, str) else roofline_of_training(worst, workload)
        document = msgspec.structs.replace(document, ceilings=ceilings, **details_of(worst))
    return Diagnosis(document, predicted.candidates.applied)


def _rank_result(found: Analysis, parts: RankParts | None) -> RankResult:
    process = found.process
    return RankResult(
        rank=process.rank, pid=process.pid, verdict=found.verdict, num_steps=process.num_training_steps, parts=parts
    )


def remedies_of(ranking: Ranking, candidates: Candidates, *, starved: bool) -> Remedies:
    """Return the predictions; those whose gain may be chance, or is too small to be worth a change, are listed separately.

    The ranking compares runs of one day. Users compare runs of different days, so the interval that they see, which contains
    how much these differ, must not reach to no gain.
    """
    sure = [one for one in ranking.worth_it if one.gain.low > 0]
    best = ranking.best
    if best not in sure:
        best = next((one for one in sure if one.remedy.is_free), ranking.now)
    name = NO_REMEDY if starved and best is ranking.now else best.remedy.name
    chosen = (
        msgspec.structs.replace(
            _outlook(one),
            needs_edit=one.remedy.name not in candidates.applied,
            changes_results=one.remedy.changes_results,
            needs_machines=one.remedy.needs_machines,
        )
        for one in sure
    )
    return Remedies(
        best=name,
        predictions=tuple(sorted(chosen, key=lambda one: one.name != name)),
        within_noise=tuple(_outlook(one) for one in ranking.predictions if one not in sure),
        now=_outlook(ranking.now),
        measured_step_s=ranking.measured_step_s,
        misfit=ranking.misfit,
        contention=candidates.contention,
    )


def _outlook(prediction: Prediction) -> Outlook:
    return Outlook(
        name=prediction.remedy.name,
        **guide_of(prediction.remedy.how),
        step_s=prediction.step_s,
        gain=prediction.gain,
        starvation=prediction.starvation,
    )


def _troubles(found: Sequence[Analysis]) -> Iterator[str]:
    """Yield what went wrong in the ranks' measurement, and then what they did not measure."""
    for one in found:
        yield from (f"rank {one.process.rank}: {text}" for text in one.process.troubles)
    for one in found:
        if num := one.process.context.num_elsewhere:
            yield f"rank {one.process.rank}: {num} batches were taken by other threads than the first and were not measured"


def _unmeasured() -> Verdict:
    reason = "no loader of torch.utils.data, datapipe or accelerate was iterated, or a signal ended the run first"
    return Verdict(VerdictKind.NOT_MEASURED, None, reason, figures_of(np.zeros(0, STEP)))


def with_applied(document: Document, chosen: Outlook, found: Sequence[Analysis], *, exit_code: int) -> Document:
    """Return the document with the outcome of applying `chosen`. `found`: the ranks of that run; empty without a loader."""
    reason = None if exit_code == 0 else f"the script ended with status {exit_code}"
    measured_s, starvation, troubles = None, None, list[str]()
    if found:
        figures = found[join_ranks(found).place].of_loader
        measured_s = figures.step_s if figures.is_settled else None
        starvation = figures.starvation
        reason = reason or (None if measured_s is not None else "the steps over that loader did not settle; let it run longer")
        troubles = [f"with {chosen.name}: {text}" for one in found for text in one.process.troubles]
    else:
        reason = reason or "no loader was iterated"
    applied = AppliedRemedy(
        remedy=chosen.name,
        predicted_step_s=chosen.step_s.value,
        low_s=chosen.step_s.low,
        high_s=chosen.step_s.high,
        measured_step_s=measured_s,
        starvation=starvation,
        reason=reason,
    )
    remedies = document.remedies
    if remedies is not None and measured_s is not None and exit_code == 0:
        remedies = ranked_again(remedies, chosen.name, measured_s)
    return msgspec.structs.replace(document, applied=applied, remedies=remedies, troubles=(*document.troubles, *troubles))


def ranked_again(remedies: Remedies, name: str, measured_s: float) -> Remedies:
    """Return the remedies after the one of this name has made a step of `measured_s`.

    Without a gain it is not recommended any more; neither are other numbers of workers, if it was one: they are predicted alike.
    """
    now_s = remedies.measured_step_s
    if now_s is None:
        return remedies
    gained = 1 - measured_s / now_s
    kept, refuted = list[Outlook](), list[Outlook]()
    for one in remedies.predictions:
        if one.name == name:
            seen = msgspec.structs.replace(one, step_s=_exactly(measured_s), gain=_exactly(gained))
            if gained >= WORTH_IT:
                kept.append(seen)
            else:
                refuted.append(msgspec.structs.replace(seen, refuted="it gained nothing when it was applied"))
        elif gained < WORTH_IT and name.startswith(_OF_WORKERS) and one.name.startswith(_OF_WORKERS):
            refuted.append(msgspec.structs.replace(one, refuted=f"{name} gained nothing when it was applied"))
        else:
            kept.append(one)
    kept.sort(key=lambda one: one.step_s.value)
    best = next((one.name for one in kept if one.is_free), NO_REMEDY)
    kept.sort(key=lambda one: one.name != best)
    return msgspec.structs.replace(remedies, best=best, predictions=tuple(kept), within_noise=(*refuted, *remedies.within_noise))


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)
