"""Reduce steps to the few figures that a verdict uses. Pure; nothing is judged here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datapipe.diagnostics.judge.bootstrap import Interval, ratio_interval
from datapipe.diagnostics.judge.steady import MIN_STEPS, find_steady
from datapipe.diagnostics.measure.timeline import Steps

Basis = Literal["device", "host"]

# A shorter gap while the batch is ready is the host's time to fetch it and says nothing about data. It is also the
# promised resolution of gaps.
RESOLUTION_S = 0.5e-3
_IDLE_SHARE = 0.5  # idle share of the host's wait from which the device counts as idle when the wait began


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the steady state, per step in seconds. None: not measured."""

    basis: Basis  # whose wait is measured: the device's idle time, or the host's without a device
    num_steps: int  # the steps behind the figures
    num_first: int  # excluded: first steps of passes,
    num_unsettled: int  # steps before the loop settled,
    num_evaluation: int  # and evaluation
    is_settled: bool
    step_s: float | None  # mean, begin to begin
    data_s: float | None  # part of step_s: waiting for data, copies included
    starvation: Interval | None  # data_s / step_s
    gap_s: float | None  # part of data_s: in next()
    copy_s: float | None  # part of data_s: copies that the loop requested
    fetch_s: float | None  # idle in next() although the batch was ready: the host's time, not part of data_s
    host_wait_s: float | None  # the host in next()
    hidden_s: float | None  # part of host_wait_s: hidden behind work of the device
    exposed_by_sync_s: float | None  # part of data_s, at most: hidden behind work if the loop did not wait for the device
    sync_share: float | None  # share of steps in which the host waited for the device
    idle_share: float | None  # share of steps, among those without such a wait, in which the device was idle when next() began
    ahead_share: float | None  # share of steps that the device had not yet reached when the host requested the next
    ready_share: float | None  # share of steps whose batch was ready when requested
    updates_per_batch: float | None


def figures_of(steps: Steps, *, num_workers: int | None = None, seed: int = 0) -> Figures:
    """Return the figures of `steps`. `num_workers`: of the loader; 0 means batches are made within `next()`. None: unknown."""
    steady = find_steady(steps)
    rows = steps[steady.chosen]
    on_device = ~np.isnan(rows["gap_s"]) & ~np.isnan(rows["work_s"])
    basis: Basis = "device" if on_device.sum() * 2 >= max(1, len(rows)) else "host"
    if basis == "device":
        rows = rows[on_device]
    return _figures(
        rows,
        basis,
        num_workers,
        seed,
        num_first=steady.num_first,
        num_unsettled=steady.num_unsettled,
        num_evaluation=steady.num_evaluation,
        is_settled=steady.is_settled,
    )


def data_times(rows: Steps, basis: Basis) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return (waiting for data, the rest of the idle time in next(), the whole step): each (n,) seconds."""
    gap = rows["gap_s"] if basis == "device" else rows["host_wait_s"]
    work = rows["work_s"] if basis == "device" else rows["host_work_s"]
    copy = np.nan_to_num(rows["copy_s"]) if basis == "device" else np.zeros(len(rows))
    is_fetch = (rows["num_ready"] > 0) & (gap <= RESOLUTION_S)
    return np.where(is_fetch, 0.0, gap) + copy, np.where(is_fetch, gap, 0.0), gap + copy + work


def _figures(rows: Steps, basis: Basis, num_workers: int | None, seed: int, **counts: Any) -> Figures:
    data, fetch, step = data_times(rows, basis)
    enough = len(rows) >= MIN_STEPS
    is_ready_known, is_update_known = rows["num_ready"] >= 0, rows["num_updates"] >= 0
    syncs = rows["sync_s"] > 0
    has_device, has_syncs = basis == "device", bool(len(rows)) and not np.isnan(rows["sync_s"]).any()
    free = ~syncs
    is_idle = rows["gap_s"] >= _IDLE_SHARE * rows["host_wait_s"]
    return Figures(
        basis=basis,
        num_steps=len(rows),
        **counts,
        step_s=_mean(step),
        data_s=_mean(data),
        starvation=ratio_interval(data, step, seed=seed) if enough and step.sum() > 0 else None,
        gap_s=_mean(data - np.nan_to_num(rows["copy_s"]) if has_device else data),
        copy_s=_mean(rows["copy_s"]) if has_device and not np.isnan(rows["copy_s"]).any() else None,
        fetch_s=_mean(fetch) if is_ready_known.all() else None,
        host_wait_s=_mean(rows["host_wait_s"]),
        hidden_s=_mean(np.maximum(0, rows["host_wait_s"] - rows["gap_s"])) if has_device else None,
        exposed_by_sync_s=_mean(_exposed(rows, data, num_workers)) if has_device and has_syncs else None,
        sync_share=_mean(syncs) if has_syncs else None,
        idle_share=_mean(is_idle[free]) if has_device and free.sum() * 2 > len(rows) else None,
        ahead_share=_mean(rows["is_ahead"][rows["is_ahead"] >= 0]) if has_device else None,
        ready_share=_mean(rows["num_ready"][is_ready_known] > 0),
        updates_per_batch=_mean(rows["num_updates"][is_update_known]),
    )


def _exposed(rows: Steps, data: NDArray[np.float64], num_workers: int | None) -> NDArray[np.float64]:
    """Return how much of each wait would be hidden, at most, if the step before it had not waited for the device.

    The device would then still have had the part of its work that the host is not needed for. Only time that the host itself
    spends on a batch can be hidden: workers that are too slow remain too slow.
    """
    before = np.roll(rows, 1)
    headroom = np.maximum(0, before["work_s"] - (before["host_work_s"] - before["sync_s"]))
    by_host = (rows["num_ready"] > 0) | (num_workers == 0)
    follows = (np.roll(rows["pass_id"], 1) == rows["pass_id"]) & (before["sync_s"] > 0)
    follows[:1] = False
    exposed: NDArray[np.float64] = np.where(follows & by_host, np.minimum(data, headroom), 0.0)
    return exposed


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None
