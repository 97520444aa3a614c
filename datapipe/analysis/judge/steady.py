"""Find the steps of the steady state: not the first of a pass, nor those before the loop has settled, nor of earlier regimes.

A loop settles late: kernels are compiled, workers start, and a full prefetch buffer hides a shortage for many steps. The
change of level is found on ranks, so that one slow step does not decide: it is the place where the sums before and after
differ most (Pettitt, "A non-parametric approach to the change-point problem", Applied Statistics 28, 1979). It counts only
if the two sides differ by more than chance: rare stalls are part of the steady state.

Passes may also differ in level as wholes, such as a first epoch that fills a cache and later ones that read it. Pooled, they
would give a mean of two different things, and no remedy would fit both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.analysis.judge.bootstrap import block_length
from datapipe.instruments.measure.timeline import Steps

MIN_STEPS = 16  # the fewest steps of a pass that can be judged
_ALIKE = 1e-3  # share of the median: steps that differ by less count as equal
_CHANCES = 50  # extreme values at the head are cut off if chance gives them in fewer than 1 of this many cases
_SURE = 3.0  # standard deviations of the rank test
_MATTERS = 0.05  # share of the mean step: a pass that drifts by less has settled
_APART = 0.2  # share of time spent waiting: passes that differ by more belong to two regimes


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady steps of a run, and the numbers of excluded steps."""

    chosen: NDArray[np.bool_]  # (n,) mask of the steps
    num_first: int  # first steps of passes
    num_unsettled: int  # before a pass has settled, or in passes that did not
    num_evaluation: int
    is_settled: bool  # at least one pass has settled


def find_steady(steps: Steps) -> Steady:
    """Find the steady part of all training passes together.

    A pass has settled if at least half of it lies after the cut, and its buffer is no longer draining. If none has, the second
    halves of passes are taken for want of better, with `is_settled` False; of passes that are too short, the second half of all.
    """
    chosen, halves = np.zeros(len(steps), np.bool_), np.zeros(len(steps), np.bool_)
    training = ~steps["is_evaluation"]
    for number in np.unique(steps["pass_id"][training]):
        rows = np.flatnonzero(training & (steps["pass_id"] == number) & ~steps["is_first"])
        start = settles_at(step_times(steps[rows]))
        if start is not None and not _is_draining(steps["num_ready"][rows[start:]]):
            chosen[rows[start:]] = True
        if len(rows) >= 2 * MIN_STEPS:
            halves[rows[len(rows) // 2 :]] = True
    joined = np.flatnonzero(training & ~steps["is_first"])
    if not halves.any() and len(joined) >= 2 * MIN_STEPS:
        halves[joined[len(joined) // 2 :]] = True
    is_settled = bool(chosen.any())
    chosen = chosen if is_settled else halves
    num_first = int((training & steps["is_first"]).sum())
    num_unsettled = int(training.sum()) - num_first - int(chosen.sum())
    return Steady(chosen, num_first, num_unsettled, int(len(steps) - training.sum()), is_settled)


def step_times(steps: Steps) -> NDArray[np.float64]:
    """Return (n,) seconds from begin to begin, by the device if it was measured, else by the host."""
    on_device = steps["gap_s"] + np.nan_to_num(steps["copy_s"]) + steps["work_s"]
    result: NDArray[np.float64] = np.where(np.isnan(on_device), steps["host_wait_s"] + steps["host_work_s"], on_device)
    return result


def settles_at(times: NDArray[np.float64]) -> int | None:
    """Return the number of values before a series has settled; None if it does not within half its length."""
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
    """Return how many values at the head each exceed all the rest, if that is not chance, which is 1 in (n over num)."""
    highest_after = np.maximum.accumulate(ranks[::-1])[::-1]
    for num in range(min(MIN_STEPS, len(ranks) // 2), 0, -1):
        if ranks[:num].min() > highest_after[num] and math.comb(len(ranks), num) > _CHANCES:
            return num
    return 0


def _differ(before: NDArray[np.float64], after: NDArray[np.float64]) -> bool:
    """Return True if two parts of a series differ in level by more than chance, given the correlation of its values."""
    joined = np.concatenate([before, after])
    parts = np.round(np.concatenate([before - before.mean(), after - after.mean()]), 9)
    # Correlated values count as fewer; a correlation longer than this is a drift and not chance.
    length = min(block_length(parts), math.isqrt(len(parts)))
    spread = joined.std() * math.sqrt(length * (1 / len(before) + 1 / len(after)))
    return bool(abs(before.mean() - after.mean()) > _SURE * spread)


def _most_telling_split(ranks: NDArray[np.float64]) -> int:
    """Return the number of values before the place where the sums of both sides differ most; at least 1."""
    return 1 + int(np.argmax(np.abs(np.cumsum(ranks - ranks.mean())[:-1])))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks scaled to [-1, 1]; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle = last - (counts + 1) / 2
    ranks: NDArray[np.float64] = 2 * middle[inverse] / max(1, len(values) - 1) - 1
    return ranks


def _is_draining(num_ready: NDArray[np.int32]) -> bool:
    """Return True if the buffer is draining but not yet empty: what it hides will still show.

    Its last quarter does not count: at the end of a pass nothing is added any more.
    """
    known = num_ready[num_ready >= 0]
    if len(known) < MIN_STEPS:
        return False
    first, second, third, _ = (float(part.mean()) for part in np.array_split(known, 4))
    fall = max(1.0, _MATTERS * first)
    return first - second > fall and second - third > fall and third > 1


@dataclass(frozen=True, slots=True)
class Regime:
    """Consecutive passes of one loader with a similar share of waiting."""

    first_pass: int  # among the loader's training passes, from 0 on
    last_pass: int
    num_steps: int  # without the first of each pass
    waiting: float  # share of their time
    step_s: float


def regimes_of(steps: Steps, loader: int) -> list[Regime]:
    """Return the regimes of a loader's training passes, in order. Passes with too few steps join the one before them."""
    rows = steps[of_training(steps, loader)]
    passes = [rows[rows["pass_id"] == number] for number in np.unique(rows["pass_id"])]
    found: list[Regime] = []
    for number, of_pass in enumerate(passes):
        one = _regime(number, number, of_pass)
        before = found[-1] if found else None
        if before is not None and (
            one.num_steps < MIN_STEPS or before.num_steps < MIN_STEPS or abs(one.waiting - before.waiting) <= _APART
        ):
            found[-1] = _regime(before.first_pass, number, np.concatenate(passes[before.first_pass : number + 1]))
        else:
            found.append(one)
    return found


def of_latest(steps: Steps, loader: int, regimes: Sequence[Regime]) -> NDArray[np.bool_]:
    """Return (n,) True for the steps that remain if, of a loader's training passes, only the latest regime counts."""
    mask = np.ones(len(steps), np.bool_)
    if len(regimes) > 1:
        is_training = of_training(steps, loader)
        numbers = np.unique(steps["pass_id"][is_training])
        mask[is_training & (steps["pass_id"] < numbers[regimes[-1].first_pass])] = False
    return mask


def of_training(steps: Steps, loader: int) -> NDArray[np.bool_]:
    """Return (n,) True for the steps of a loader's training passes."""
    mask: NDArray[np.bool_] = ~steps["is_evaluation"] & (steps["loader"] == loader)
    return mask


def _regime(first: int, last: int, rows: Steps) -> Regime:
    rows = rows[~rows["is_first"]]
    times = step_times(rows)
    waits = np.where(np.isnan(rows["gap_s"]), rows["host_wait_s"], rows["gap_s"])
    total_s = float(times.sum())
    return Regime(first, last, len(rows), float(waits.sum()) / total_s if total_s else 0.0, total_s / max(1, len(rows)))
