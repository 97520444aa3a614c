"""Find passes that differ in level, such as a first epoch that fills a cache and later ones that read it. Pure.

Pooled, they would give a mean of two different things, and no remedy would fit both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.diagnostics.judge.steady import MIN_STEPS, step_times
from datapipe.diagnostics.measure.timeline import Steps

_APART = 0.2  # share of time spent waiting: passes that differ by more belong to two regimes


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
