"""Predict how long batches wait with another number of workers: workers may wait for each other. Pure.

Behind a lock that they share, or a disk that is saturated, twice as many workers wait twice as long. A run with one number of
workers does not tell this from waiting that each does for itself, so it is tried (`trials.scaling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.diagnostics.predict.workload import Workload, production_parts

_LITTLE = 0.1  # share of the time to make a batch below which waiting does not decide how workers scale
_ALIKE = 2.0  # a trial whose batches waited longer or shorter than the script's by this factor was of something else
_LITTLE_S = 2e-3  # seconds: shorter waits need not be alike
_GROWS = 1.3  # times as long a wait with more workers: they wait for each other


@dataclass(frozen=True, slots=True)
class Level:
    """A number of workers at once, as tried."""

    num_workers: int
    stall_s: float  # mean per batch, neither on a core nor waiting for one


@dataclass(frozen=True, slots=True)
class Contention:
    """How long a batch waits, neither on a core nor for one, by the number of workers."""

    now: int  # workers of the run, 1 if the training process makes the batches
    now_s: float  # mean per batch, in the run
    levels: tuple[Level, ...] = ()  # ascending; empty: unknown
    spread: float = 0.0  # relative standard error of these
    why_unknown: str | None = None  # None: it is known, or it does not matter

    def added_s(self, num_workers: int) -> float:
        """Return by how much longer a batch would wait with this number of workers."""
        return _at(self.levels, num_workers) - _at(self.levels, self.now) if self.levels else 0.0

    def worst_added_s(self, num_workers: int) -> float | None:
        """Return the same if all workers wait for each other, where that is not known; None: it is known."""
        if self.why_unknown is None or num_workers <= self.now:
            return None
        return self.now_s * (num_workers / self.now - 1)

    @property
    def grows(self) -> bool:
        """True if batches wait longer with more workers: these wait for each other."""
        if not self.levels:
            return False
        added_s = self.added_s(self.levels[-1].num_workers)
        return added_s > (_GROWS - 1) * self.now_s + _LITTLE_S


def contention_of(workload: Workload, tried: Mapping[str, Any] | None) -> Contention:
    """Return how workers wait for each other. `tried`: the result of `trials.scaling.try_scaling`; None: it was not tried."""
    stall, cpu = production_parts(workload)
    now, now_s = max(1, workload.setup.num_workers), float(stall.mean())
    if tried is None or "levels" not in tried:
        is_little = now_s < _LITTLE * float((stall + cpu).mean())
        why = None if is_little else "it was not tried" if tried is None else str(tried["reason"])
        return Contention(now, now_s, why_unknown=why)
    levels = tuple(
        Level(int(num), float(one["stall_s"])) for num, one in sorted(tried["levels"].items(), key=lambda one: int(one[0]))
    )
    tried_s = _at(levels, now)
    low, high = sorted((tried_s, now_s))
    if high > _LITTLE_S and high > _ALIKE * low:
        why = f"a batch waited {tried_s * 1e3:.1f} ms when it was tried and {now_s * 1e3:.1f} ms in the run"
        return Contention(now, now_s, why_unknown=why)
    return Contention(now, now_s, levels, spread=max(float(one["spread"]) for one in tried["levels"].values()))


def _at(levels: Sequence[Level], num_workers: int) -> float:
    """Return the waiting with this number of workers, in proportion between two that were tried."""
    return float(np.interp(num_workers, [one.num_workers for one in levels], [one.stall_s for one in levels]))
