"""Which steps show the steady state: not the first of a pass, nor those before the loop has settled.

A loop settles late: kernels are compiled, workers start, and a full prefetch buffer hides a shortage for many
steps. Where the level changes is found on ranks, so that one slow step does not decide, as the place where the sums
before and after differ most (Pettitt, "A non-parametric approach to the change-point problem", Applied Statistics
28, 1979). It counts only if the two sides differ by more than chance: rare stalls are part of the steady state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.diagnostics.bootstrap import block_length
from datapipe.diagnostics.timeline import Steps

MIN_STEPS = 16  # of a pass, for its course to mean anything
_ALIKE = 1e-3  # of the median: steps that differ by less are one and the same
_CHANCES = 50  # a head of extreme values that comes about by chance in fewer cases than 1 of these is cut off
_SURE = 3.0  # standard deviations of the rank test
_MATTERS = 0.05  # of the mean step: a pass that drifts by less has settled


@dataclass(frozen=True, slots=True)
class Steady:
    """What is left of a run, and what was set apart."""

    chosen: NDArray[np.bool_]  # (n,) which of the steps
    num_first: int  # first steps of passes
    num_unsettled: int  # before a pass has settled, or in passes that did not
    num_evaluation: int
    is_settled: bool  # at least one pass has settled

    @property
    def num_steps(self) -> int:
        return int(self.chosen.sum())


def find_steady(steps: Steps) -> Steady:
    """The steady part of all training passes together.

    A pass has settled if at least half of it lies behind the cut, and its buffer is not still running out.
    """
    chosen = np.zeros(len(steps), np.bool_)
    training = ~steps["is_evaluation"]
    for number in np.unique(steps["pass_id"][training]):
        rows = np.flatnonzero(training & (steps["pass_id"] == number) & ~steps["is_first"])
        start = settles_at(step_times(steps[rows]))
        if start is not None and not _is_draining(steps["num_ready"][rows[start:]]):
            chosen[rows[start:]] = True
    num_first = int((training & steps["is_first"]).sum())
    num_unsettled = int(training.sum()) - num_first - int(chosen.sum())
    return Steady(chosen, num_first, num_unsettled, int(len(steps) - training.sum()), bool(chosen.any()))


def step_times(steps: Steps) -> NDArray[np.float64]:
    """Seconds from begin to begin: (n,), by the device where it was measured, else by the host."""
    on_device = steps["gap_s"] + np.nan_to_num(steps["copy_s"]) + steps["work_s"]
    result: NDArray[np.float64] = np.where(np.isnan(on_device), steps["host_wait_s"] + steps["host_work_s"], on_device)
    return result


def settles_at(times: NDArray[np.float64]) -> int | None:
    """How many values of a series come before it has settled; None if it does not within half its length."""
    if len(times) < MIN_STEPS:
        return None
    ranks = _ranks(np.round(times / (_ALIKE * np.median(times))))
    start = _num_extreme(ranks)
    while len(times) - start >= MIN_STEPS:
        change = start + _most_telling_split(ranks[start:])
        apart = abs(times[start:change].mean() / times[change:].mean() - 1)
        if apart <= _MATTERS or not _differ(ranks[start:change], ranks[change:]):
            return start
        if change > len(times) // 2:
            return None
        start = change
    return None


def _num_extreme(ranks: NDArray[np.float64]) -> int:
    """Values at the head, each above all of the rest: so many that it is no chance, which is 1 in (n over them)."""
    highest_after = np.maximum.accumulate(ranks[::-1])[::-1]
    for num in range(min(MIN_STEPS, len(ranks) // 2), 0, -1):
        if ranks[:num].min() > highest_after[num] and math.comb(len(ranks), num) > _CHANCES:
            return num
    return 0


def _differ(before: NDArray[np.float64], after: NDArray[np.float64]) -> bool:
    """Whether two parts of a series differ in level by more than chance, given how its values hang together."""
    joined = np.concatenate([before, after])
    parts = np.round(np.concatenate([before - before.mean(), after - after.mean()]), 9)
    # Values that hang together count as fewer; if they do so for longer than this, it is a drift and not chance.
    length = min(block_length(parts), math.isqrt(len(parts)))
    spread = joined.std() * math.sqrt(length * (1 / len(before) + 1 / len(after)))
    return bool(abs(before.mean() - after.mean()) > _SURE * spread)


def _most_telling_split(ranks: NDArray[np.float64]) -> int:
    """How many values come before the place where the sums of both sides differ most; at least 1."""
    return 1 + int(np.argmax(np.abs(np.cumsum(ranks - ranks.mean())[:-1])))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks scaled to [-1, 1]; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle = last - (counts + 1) / 2
    ranks: NDArray[np.float64] = 2 * middle[inverse] / max(1, len(values) - 1) - 1
    return ranks


def _is_draining(num_ready: NDArray[np.int32]) -> bool:
    """Whether the buffer is seen to run out, and has not yet: what it hides will show.

    Its last quarter does not count: at the end of a pass nothing is added any more.
    """
    known = num_ready[num_ready >= 0]
    if len(known) < MIN_STEPS:
        return False
    first, second, third, _ = (float(part.mean()) for part in np.array_split(known, 4))
    fall = max(1.0, _MATTERS * first)
    return first - second > fall and second - third > fall and third > 1
