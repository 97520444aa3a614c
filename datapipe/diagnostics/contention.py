"""What loading costs the training beside waiting: cores, memory bandwidth and the device, shared with the loader.

A step on the live loader and a step on one batch that is there already do the same work. By how much the former takes
longer, apart from waiting, is what the two take from each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from datapipe.diagnostics.bootstrap import Interval, block_length, block_rows
from datapipe.diagnostics.bracket import Bracket, watch
from datapipe.diagnostics.clock import Clock
from datapipe.diagnostics.steady import MIN_STEPS, find_steady
from datapipe.diagnostics.timeline import Steps
from datapipe.errors import OptionError

T = TypeVar("T")

_NUM_REPLICATES = 1000


@dataclass(frozen=True, slots=True)
class Contention:
    """Mean seconds per step without its waiting, and their ratio: 1.1 is a step that takes 10% longer while loading."""

    live_s: float
    cached_s: float
    ratio: Interval


def measure_contention(
    step: Callable[[T], object], loader: Iterable[T], clock: Clock, *, num_steps: int = 100
) -> Contention | None:
    """Run `step` on so many batches of `loader`, then as often on the last of them, with the loader closed.

    `step` trains: use a model that may be trained on. Waits for the device once at the end of each half. None where
    either half does not settle; raises OptionError if `loader` has no batch.
    """
    live, cached = Bracket(clock), Bracket(clock)
    batches = list[T]()
    for batch in itertools.islice(watch(loader, live), num_steps):
        step(batch)
        batches[:] = [batch]
    live.finish()
    if not batches:
        raise OptionError("the loader gives no batch, so there is nothing to step on; pass one that has some")
    for batch in watch(itertools.repeat(batches[0], num_steps), cached):
        step(batch)
    cached.finish()
    return contention_of(live.timeline.steps(), cached.timeline.steps())


def contention_of(live: Steps, cached: Steps, *, seed: int = 0) -> Contention | None:
    """From two series of steps; None where either did not settle."""
    slow, fast = _work_times(live), _work_times(cached)
    if slow is None or fast is None:
        return None
    value = float(slow.mean() / fast.mean())
    low, high = np.percentile(_means(slow, seed) / _means(fast, seed + 1), [2.5, 97.5])
    return Contention(float(slow.mean()), float(fast.mean()), Interval(value, float(low), float(high)))


def _work_times(steps: Steps) -> NDArray[np.float64] | None:
    rows = steps[find_steady(steps).chosen]
    work: NDArray[np.float64] = rows["work_s"] if not np.isnan(rows["work_s"]).any() else rows["host_work_s"]
    return work if len(work) >= MIN_STEPS else None


def _means(series: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    rows = block_rows(len(series), block_length(series), (_NUM_REPLICATES, len(series)), seed=seed)
    means: NDArray[np.float64] = series[rows].mean(axis=1)
    return means
