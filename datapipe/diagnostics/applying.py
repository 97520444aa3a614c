"""Add to a diagnosis what a remedy gained when it was applied, and rank the remedies again by that. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from datapipe.diagnostics.document import AppliedRemedy, Document, Outlook, Remedies
from datapipe.diagnostics.judge.analysis import Analysis
from datapipe.diagnostics.judge.bootstrap import Interval
from datapipe.diagnostics.judge.verdict import judge_ranks
from datapipe.diagnostics.predict.remedies import NO_REMEDY, WORTH_IT

_OF_WORKERS = "num_workers="


def with_applied(document: Document, chosen: Outlook, found: Sequence[Analysis], *, exit_code: int) -> Document:
    """Return the document with the outcome of applying `chosen`. `found`: the ranks of that run; empty without a loader."""
    reason = None if exit_code == 0 else f"the script ended with status {exit_code}"
    measured_s, starvation, troubles = None, None, list[str]()
    if found:
        figures = found[judge_ranks([one.verdict for one in found])[0]].of_loader
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
    best = next((one.name for one in kept if not one.changes_results), NO_REMEDY)
    kept.sort(key=lambda one: one.name != best)
    return msgspec.structs.replace(remedies, best=best, predictions=tuple(kept), within_noise=(*refuted, *remedies.within_noise))


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)
