"""Join the ranks of a training: which of them the others wait for, in what part of its step, and why.

Ranks that train together make equally long steps. One that is late in a part of its step has more of that part than the
others, and they wait for it: mostly at the end of backward, where gradients are exchanged, so that it waits least there. Waiting
for data, and the loop's own code, are late by themselves; but a forward or backward pass, and the loop, may also contain waiting
for others, so these count only for a rank that waits less than the others.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from datapipe.analysis.judge.analysis import Analysis
from datapipe.analysis.judge.attribution import seconds_by_stage
from datapipe.analysis.judge.bootstrap import Known, Number
from datapipe.analysis.judge.verdict import MODERATE, Verdict, data_times
from datapipe.instruments.measure.observed import Exchange

_FEWEST = 4  # timed iterations, for a rank's mean
_TIMES = ("forward_s", "backward_s", "wait_s")  # of an iteration
_SURE = 2.0  # standard errors
_INTERVAL = 2 * 1.96  # an interval's width, in standard errors
_MOST_OF = 0.5  # of a part's excess, that the others must wait longer

Part: TypeAlias = Literal["data", "forward", "backward", "loop"]
PARTS: tuple[Part, ...] = ("data", "forward", "backward", "loop")


class RankParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a rank's mean steady step, or if gradients are accumulated, of the steps of one update; in seconds."""

    step_s: Number
    data_s: Number  # waiting for data
    forward_s: Known = None  # None: torch has timed too few iterations, or the training does without DistributedDataParallel
    backward_s: Known = None
    loop_s: Known = None  # all else: the optimiser, and what the loop does besides
    others_s: Known = None  # waiting for gradients of the other ranks, and their exchange
    syncs_in_forward: bool = False  # forward_s may be waiting for other ranks, too
    data_error_s: Number = 0.0  # standard error of data_s,
    error_s: Number = 0.0  # and of each of the other parts

    @property
    def waits_s(self) -> float | None:
        """Time that may be waiting for the other ranks."""
        if self.others_s is None or self.forward_s is None:
            return None
        return self.others_s + (self.forward_s if self.syncs_in_forward else 0.0)


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that the others wait for."""

    rank: int
    part: Part  # in which it takes longer than they do
    excess_s: Number  # per step: what they wait for it
    share: Number  # of their step
    stage: str | None = None  # of its data: one of `fault.MEANINGS`, in which a batch takes longest beyond theirs; None: unknown
    stage_s: Known = None  # per batch there,
    usual_stage_s: Known = None  # and on the other ranks
    host: str | None = None  # its machine, if the ranks are on several


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks show together."""

    place: int  # of the rank whose verdict counts: the one that the others wait for, else the one that waits most for data
    verdict: Verdict
    parts: tuple[RankParts | None, ...]
    straggler: Straggler | None = None
    in_turn_s: Known = None  # per step: lost as the ranks wait for data one after the other; None: negligible, or not known


def join_ranks(found: Sequence[Analysis]) -> Joined:
    """Join the analysed ranks, at least one, in the order of their numbers."""
    parts = tuple(map(parts_of, found))
    late = _latest(parts)
    straggler = None if late is None else _straggler(found, *late)
    place = max(range(len(found)), key=lambda one: _waited_s(found[one])) if late is None else late.place
    verdict, rank = found[place].verdict, found[place].process.rank
    in_turn_s = _in_turn_s(found) if straggler is None else None
    if len(found) > 1:
        who = f"rank {rank}, which waits most of {len(found)}" if straggler is None else straggler_line(straggler, len(found))
        verdict = replace(verdict, reason=f"{who}: {verdict.reason}")
    return Joined(place=place, verdict=replace(verdict, rank=rank), parts=parts, straggler=straggler, in_turn_s=in_turn_s)


def straggler_line(found: Straggler, num_ranks: int) -> str:
    """Return who waits for whom, how long, and why."""
    others = "the other rank waits" if num_ranks == 2 else f"the {num_ranks - 1} other ranks wait"
    where = "" if found.host is None else f" on {found.host}"
    return f"{others} for rank {found.rank}{where} {found.excess_s * 1e3:.1f} ms of each step ({found.share:.0%}): {_why(found)}"


def _why(found: Straggler) -> str:
    match found.part:
        case "data":
            if found.stage is None or found.stage_s is None or found.usual_stage_s is None:
                return "it waits longer for its data"
            took = f"{found.stage_s * 1e3:.3g} ms a batch instead of {found.usual_stage_s * 1e3:.3g} ms"
            return f"its data takes longer in {found.stage}, {took}"
        case "loop":
            return "what its loop does between its passes takes longer, such as logging or saving on one rank alone"
        case _:
            return f"its {found.part} pass takes longer; a slower or hotter device, longer samples, other work on its cores"


def parts_of(found: Analysis) -> RankParts | None:
    """Return the parts of a rank's mean step; None if no step was steady."""
    figures = found.figures
    if figures.step_s is None or figures.data_s is None:
        return None
    per_update = figures.updates_per_batch
    num_micro = 1 / per_update if per_update is not None and 0 < per_update < 1 else 1.0
    step_s, share = figures.step_s * num_micro, figures.starvation
    error_s = 0.0 if share is None else (share.high - share.low) / _INTERVAL * step_s
    parts = RankParts(step_s=step_s, data_s=figures.data_s * num_micro, data_error_s=error_s)
    modules = _timed(found)
    if not modules or min(map(len, modules)) < _FEWEST:
        return parts
    forward_s, backward_s, others_s = (
        sum(statistics.fmean(getattr(one, name) for one in of) for of in modules) for name in _TIMES
    )
    return msgspec.structs.replace(
        parts,
        forward_s=forward_s,
        backward_s=backward_s,
        others_s=others_s,
        loop_s=max(0.0, parts.step_s - parts.data_s - forward_s - backward_s - others_s),
        error_s=math.hypot(error_s, *map(_error_s, modules)),
        syncs_in_forward=any(one.syncs_in_forward for of in modules for one in of),
    )


def _error_s(timed: Sequence[Exchange]) -> float:
    """Return the standard error of the mean of all that was timed of a module."""
    return statistics.stdev(one.forward_s + one.backward_s + one.wait_s for one in timed) / math.sqrt(len(timed))


def _timed(found: Analysis) -> list[list[Exchange]]:
    """Return the iterations of steady steps that torch has timed, by module."""
    steady = found.process.steps[found.steady]
    if not len(steady):
        return []
    since_ns = int(steady["start_ns"].min())
    modules: defaultdict[int, list[Exchange]] = defaultdict(list)
    for one in found.process.exchanges:
        if one.read_ns > since_ns:
            modules[one.module].append(one)
    return list(modules.values())


class _Late(NamedTuple):
    """A part in which a rank takes longer than the others, so that they wait for it."""

    excess_s: float
    place: int
    part: Part
    step_s: float


def _latest(parts: Sequence[RankParts | None]) -> _Late | None:
    """Return where the others lose most time, if anywhere."""
    ranks = {place: one for place, one in enumerate(parts) if one is not None}
    if len(ranks) < 2:
        return None
    step_s = statistics.median(one.step_s for one in ranks.values())
    late = []
    for place, rank in ranks.items():
        others = [one for other, one in ranks.items() if other != place]
        for part in PARTS:
            excess_s = _beyond(rank, others, f"{part}_s")
            errors = [one.data_error_s if part == "data" else one.error_s for one in ranks.values()]
            if excess_s is None or excess_s < max(MODERATE * step_s, _SURE * max(errors)):
                continue
            is_pass = part in ("forward", "backward")
            less_s = _beyond(rank, others, "others_s" if is_pass else "waits_s")
            if is_pass and rank.syncs_in_forward:  # the pass may have waited for a single one of the others
                less_s = max((found for one in others if (found := _beyond(rank, [one], "others_s")) is not None), default=None)
            if less_s is None or -less_s >= _MOST_OF * excess_s:
                late.append(_Late(excess_s, place, part, step_s))
    return max(late, default=None)


def _straggler(found: Sequence[Analysis], excess_s: float, place: int, part: Part, step_s: float) -> Straggler:
    rank, others = found[place], [one for number, one in enumerate(found) if number != place]
    stage, stage_s, usual_s = _stage_beyond(rank, others) if part == "data" else (None, None, None)
    hosts = {one.process.environment.get("host") for one in found}
    return Straggler(
        rank=rank.process.rank,
        part=part,
        excess_s=excess_s,
        share=min(1.0, excess_s / step_s),
        stage=stage,
        stage_s=stage_s,
        usual_stage_s=usual_s,
        host=rank.process.environment.get("host") if len(hosts) > 1 else None,
    )


def _beyond(rank: RankParts, others: Sequence[RankParts], name: str) -> float | None:
    """Return by how much a rank's part is longer than the median of the others; None if one of them is unknown."""
    own, theirs = getattr(rank, name), [getattr(one, name) for one in others]
    return None if own is None or None in theirs else float(own - statistics.median(theirs))


def _stage_beyond(rank: Analysis, others: Sequence[Analysis]) -> tuple[str | None, float | None, float | None]:
    """Return the stage in which a batch of this rank takes longest beyond the others', and how long it takes here and there."""
    own, theirs = seconds_by_stage(rank.profiles, rank.events), [seconds_by_stage(one.profiles, one.events) for one in others]
    usual = {stage: statistics.median(one.get(stage, 0.0) for one in theirs) for stage in own}
    if not own or not all(theirs):
        return (None, None, None) if rank.attribution is None else (rank.attribution.fault, None, None)
    stage = max(own, key=lambda one: own[one] - usual[one])
    return stage, own[stage], usual[stage]


def _in_turn_s(found: Sequence[Analysis]) -> float | None:
    """Return what the ranks lose per step by waiting for data one after the other: the longest wait of each, less that of a rank.

    Ranks make the same training steps, so that these are matched by their numbers.
    """
    if len(found) < 2:
        return None
    waits: list[dict[int, float]] = []
    for one in found:
        training = ~one.process.steps["is_evaluation"]
        numbers: NDArray[np.int64] = one.process.num_before + np.cumsum(training) - 1
        chosen = one.steady & training
        data, _, _ = data_times(one.process.steps[chosen], one.figures.basis)
        waits.append(dict(zip(numbers[chosen].tolist(), np.nan_to_num(data).tolist(), strict=True)))
    common = sorted(set(waits[0]).intersection(*waits[1:]))
    steps = [one.figures.step_s for one in found if one.figures.step_s is not None]
    if not common or not steps:
        return None
    table = np.array([[of[number] for number in common] for of in waits])
    lost_s = float(table.max(axis=0).mean() - table.mean(axis=1).max())
    return lost_s if lost_s >= MODERATE * statistics.median(steps) else None


def _waited_s(found: Analysis) -> float:
    return -1.0 if found.figures.data_s is None else found.figures.data_s
