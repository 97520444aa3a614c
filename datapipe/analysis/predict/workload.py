"""The inputs of a replay, taken from a measurement, and the effect of a change on them.

Another number of workers may also change how long each waits. Behind a lock that they share, or a disk that is saturated, twice
as many workers wait twice as long. A run with one number of workers does not tell this from waiting that each does for itself, so
it is tried (`trials.scaling`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.analysis.judge.bootstrap import block_length, block_rows
from datapipe.analysis.judge.steady import MIN_STEPS, find_steady
from datapipe.analysis.predict.replay import Course, Delivery, Floats, Setup
from datapipe.errors import OptionError
from datapipe.instruments.measure.timeline import Steps

_LITTLE = 0.1  # share of the time to make a batch below which waiting does not decide how workers scale
_ALIKE = 2.0  # a trial whose batches waited longer or shorter than the script's by this factor was of something else
_LITTLE_S = 2e-3  # seconds: shorter waits need not be alike
_GROWS = 1.3  # times as long a wait with more workers: they wait for each other


@dataclass(frozen=True, slots=True)
class Workload:
    """Measured series: the times to make batches, and to use them. The two may differ in length."""

    production_s: Floats  # (b,) wall time to make each batch, by one worker, in order
    production_cpu_s: Floats | None  # (b,) the part on a core; None: not measured, and taken to be all of it
    delivery_s: Floats  # (d,) the caller's part of next() when the batch is ready
    host_s: Floats  # (n,) the caller between two next(), without waiting for the device
    work_s: Floats  # (n,) the device; all 0 without a device, when the caller itself does the work
    is_synced: NDArray[np.bool_]  # (n,) the caller waits for the device in this step
    setup: Setup  # the setup of the measurement
    host_cpu_s: float = 0.0  # core time per step that is spent outside the threads that make batches, most of it by the caller
    made_by: NDArray[np.int64] | None = None  # (b,) the worker that made each batch; None: unknown
    floor_s: float = 0.0  # no remedy for this loader makes a step shorter: another loader, which is read in turn, takes this

    def __post_init__(self) -> None:
        if not (
            len(self.host_s) == len(self.work_s) == len(self.is_synced) >= 1
            and len(self.production_s) >= 1
            and len(self.delivery_s) >= 1
        ):
            raise OptionError(
                f"a workload of {len(self.production_s)} batches made and {len(self.host_s)}, {len(self.work_s)}, "
                f"{len(self.is_synced)} steps, {len(self.delivery_s)} deliveries; the steps must agree, and none may be 0"
            )
        if self.made_by is not None and len(self.made_by) != len(self.production_s):
            raise OptionError(f"{len(self.made_by)} workers for {len(self.production_s)} batches")
        if self.production_cpu_s is not None and len(self.production_cpu_s) != len(self.production_s):
            raise OptionError(f"{len(self.production_cpu_s)} CPU times for {len(self.production_s)} batches")


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of a remedy on a workload. The defaults change nothing."""

    setup: Setup | None = None  # None: as measured
    production_factor: float = 1.0  # on the time to make a batch: another format, another loader, a cache
    production_spread: float = 0.0  # relative standard error of that factor
    stall_added_s: float = 0.0  # to the mean time that making a batch waits, not on a core: workers that wait for each other
    worst_stall_added_s: float | None = None  # the same at worst, where that is not known; None: it is known
    delivery_factor: float = 1.0  # on the caller's part of next()
    batch_factor: float = 1.0  # samples per batch; making, delivery and the device's work grow with it
    drops_syncs: bool = False  # the loop no longer waits for the device

    def __post_init__(self) -> None:
        if min(self.production_factor, self.batch_factor) <= 0 or min(self.production_spread, self.delivery_factor) < 0:
            raise OptionError(
                f"factors {self.production_factor}, {self.delivery_factor}, {self.batch_factor} and spread "
                f"{self.production_spread}; those on making and on samples must be above 0, the others 0 or more"
            )


def workload_of(
    steps: Steps,
    setup: Setup,
    *,
    production_s: Floats | None = None,
    production_cpu_s: Floats | None = None,
    made_by: NDArray[np.int64] | None = None,
    delivery_s: Floats | None = None,
    floor_s: float = 0.0,
    made_here_cpu_s: float | None = None,
    helpers_cpu_s: float = 0.0,
) -> Workload | None:
    """Return the workload of a run's steady steps; None if too little was measured to replay it.

    `production_s`, `production_cpu_s`: of each batch, as its worker measured them. Without workers a batch is made within
    `next()`, and the time of that is used. `delivery_s`: None: the waits for batches that were ready, or if that is
    unknown the shortest wait. `made_here_cpu_s`: core time per batch of making it in the caller's process; None: unknown, and the
    caller is taken to compute all the time between two `next()`. `helpers_cpu_s`: that of the workers' other threads, per batch.
    """
    rows = steps[find_steady(steps).chosen]
    if len(rows) < MIN_STEPS:
        return None
    on_device = ~np.isnan(rows["work_s"])
    if not on_device.all() and on_device.sum() * 2 >= len(rows):
        rows = rows[on_device]
    has_device = bool(on_device.sum() * 2 >= len(on_device))
    if setup.num_workers == 0:
        production_s = rows["host_wait_s"] if production_s is None or not len(production_s) else production_s
        delivery_s = np.array([max(0.0, float(rows["host_wait_s"].mean() - production_s.mean()))])
    if production_s is None or not len(production_s):
        return None
    if delivery_s is None:
        ready = rows["host_wait_s"][rows["num_ready"] > 0]
        delivery_s = ready if len(ready) else rows["host_wait_s"].min(keepdims=True)
    syncs = np.nan_to_num(rows["sync_s"])
    host_s = np.maximum(0.0, rows["host_work_s"] - syncs)
    return Workload(
        production_s=np.asarray(production_s, np.float64),
        production_cpu_s=None if production_cpu_s is None else np.asarray(production_cpu_s, np.float64),
        delivery_s=np.asarray(delivery_s, np.float64),
        host_s=host_s,
        work_s=rows["work_s"] + np.nan_to_num(rows["copy_s"]) if has_device else np.zeros(len(rows)),
        is_synced=syncs > 0,
        setup=setup,
        host_cpu_s=_host_cpu_s(rows, host_s, made_here_cpu_s) + helpers_cpu_s,
        made_by=made_by,
        floor_s=floor_s,
    )


def _host_cpu_s(rows: Steps, host_s: Floats, made_here_cpu_s: float | None) -> float:
    cpu_s = rows["cpu_s"][~np.isnan(rows["cpu_s"])]
    if made_here_cpu_s is None or not len(cpu_s):
        return float(host_s.mean())
    return max(0.0, float(cpu_s.mean()) - made_here_cpu_s)


def course_of(workload: Workload, change: Change, *, num_replicates: int, num_steps: int) -> Course:
    """Return replicates of the workload under the change, drawn in blocks from the measurements.

    The first replicate is the measurement, repeated as often as needed. The draws are the same for any change, so that
    differences between changes are not chance.
    """
    shape = (num_replicates, num_steps)
    made = _rows_of(workload.production_s, shape, workload.setup.num_workers, seed=0)
    used = _rows_of(workload.host_s + workload.work_s, shape, 1, seed=1)
    delivered = _rows_of(workload.delivery_s, shape, 1, seed=3)
    stall, cpu = production_parts(workload)
    stall = _stalls_with(stall, change.stall_added_s)
    pace = _pace(workload) if change.setup is not None and change.setup.delivery is Delivery.COMPLETION else None
    if pace is not None and workload.made_by is not None:  # each worker at its own pace
        stall, cpu = stall / pace[workload.made_by], cpu / pace[workload.made_by]
    spread = math.sqrt(math.log1p(change.production_spread**2))
    drawn = np.random.default_rng(2).standard_normal(num_replicates)
    drawn[0] = 0.0
    factor = change.production_factor * change.batch_factor * np.exp(spread * drawn)[:, None]
    has_device = bool(workload.work_s.any())
    synced = workload.is_synced & (not change.drops_syncs)
    return Course(
        stall_s=stall[made] * factor,
        cpu_s=cpu[made] * factor,
        delivery_s=workload.delivery_s[delivered] * (change.batch_factor * change.delivery_factor),
        host_s=workload.host_s[used] * (1.0 if has_device else change.batch_factor),
        work_s=workload.work_s[used] * change.batch_factor,
        is_synced=synced[used],
        host_cpu_s=workload.host_cpu_s * (1.0 if has_device else change.batch_factor),
        pace=pace,
    )


def _stalls_with(stall: Floats, added_s: float) -> Floats:
    """Return (b,) seconds of waiting, longer by `added_s` each, or shorter in proportion."""
    if added_s >= 0:
        return stall + added_s
    mean_s = float(stall.mean())
    return stall * max(0.0, 1 + added_s / mean_s) if mean_s > 0 else stall


def _pace(workload: Workload) -> Floats | None:
    """Return each worker's time per batch relative to the mean; None if some are unknown."""
    if workload.made_by is None:
        return None
    num = np.bincount(workload.made_by, minlength=workload.setup.num_workers)
    if len(num) != workload.setup.num_workers or not num.all():
        return None
    each = np.bincount(workload.made_by, weights=workload.production_s, minlength=len(num)) / num
    pace: Floats = each / each.mean()
    return pace


def _rows_of(series: Floats, shape: tuple[int, int], unit: int, *, seed: int) -> NDArray[np.int64]:
    """Return (replicates, steps) indices of the series; blocks hold whole rounds of `unit` workers, and start with one.

    A replicate is another run as long as the measured one, repeated as often as needed: a mean over more steps than were
    measured would seem more certain than it is. It is drawn from a series that is itself drawn from the measured one, since
    both the measurement and the future are subject to chance.
    """
    num_replicates, num_steps = shape
    unit = max(1, min(unit, len(series)))
    rounds = len(series) // unit
    length = -(-block_length(series) // unit)
    known = block_rows(rounds, length, (num_replicates, rounds), seed=seed)
    drawn = np.take_along_axis(known, block_rows(rounds, length, (num_replicates, rounds), seed=seed + 1000), axis=1)
    run = (drawn[:, :, None] * unit + np.arange(unit)).reshape(num_replicates, -1)
    rows = run[:, np.arange(num_steps) % run.shape[1]]
    rows[0] = np.arange(num_steps) % len(series)
    return rows


def production_parts(workload: Workload) -> tuple[Floats, Floats]:
    """Return (waiting, computing) of each batch: (b,) seconds each, as if it had the cores to itself.

    With too few cores, a batch also waited for its turn on one; that part is not counted as storage's.
    """
    if workload.production_cpu_s is None:
        return np.zeros(len(workload.production_s)), workload.production_s
    cpu = np.minimum(workload.production_cpu_s, workload.production_s)
    stall, setup = workload.production_s - cpu, workload.setup
    if setup.num_cores is not None and setup.num_workers > 1:
        busy = setup.num_workers * cpu.sum() / max(float(workload.production_s.sum()), 1e-12)
        if busy > 0.9 * max(setup.num_cores - 1, setup.num_cores / 2):
            stall = np.zeros(len(cpu))
    return stall, cpu


def fills_cores(workload: Workload, change: Change) -> bool:
    """Return True if under the change as many workers as there are cores compute most of the time, so that none is left over."""
    setup = change.setup or workload.setup
    if setup.num_cores is None or setup.num_workers < max(1.0, setup.num_cores):
        return False
    stall, cpu = production_parts(workload)
    return bool(cpu.mean() > _stalls_with(stall, change.stall_added_s).mean())


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
