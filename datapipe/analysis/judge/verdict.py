"""The figures of the steady state, and the verdict on them: does the device lack data, and if not, what limits it.

The limits are those of TensorFlow's profiler: an input share below 5% is fine; from 20% on, the training is highly
input-bound.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from datapipe.analysis.judge.bootstrap import Interval, ratio_interval
from datapipe.analysis.judge.steady import MIN_STEPS, find_steady
from datapipe.instruments.measure.timeline import Context, Steps

MODERATE, HIGH = 0.05, 0.20
Severity = Literal["fine", "moderate", "high"]
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

    @property
    def has_short_passes(self) -> bool:
        """True if no pass has settled, and they are too short to be judged one by one."""
        return not self.is_settled and self.num_steps + self.num_unsettled < 2 * MIN_STEPS * self.num_first


def figures_of(steps: Steps, *, num_workers: int | None = None) -> Figures:
    """Return the figures of `steps`. `num_workers`: of the loader; 0 means batches are made within `next()`. None: unknown."""
    steady = find_steady(steps)
    rows = steps[steady.chosen]
    on_device = ~np.isnan(rows["gap_s"]) & ~np.isnan(rows["work_s"])
    has_device = bool(on_device.sum() * 2 >= max(1, len(rows)))
    if has_device:
        rows = rows[on_device]
    basis: Basis = "device" if has_device else "host"
    data, fetch, step = data_times(rows, basis)
    is_ready_known, is_update_known = rows["num_ready"] >= 0, rows["num_updates"] >= 0
    syncs, has_syncs = rows["sync_s"] > 0, bool(len(rows)) and not np.isnan(rows["sync_s"]).any()
    is_idle = rows["gap_s"] >= _IDLE_SHARE * rows["host_wait_s"]
    return Figures(
        basis=basis,
        num_steps=len(rows),
        num_first=steady.num_first,
        num_unsettled=steady.num_unsettled,
        num_evaluation=steady.num_evaluation,
        is_settled=steady.is_settled,
        step_s=_mean(step),
        data_s=_mean(data),
        starvation=ratio_interval(data, step) if len(rows) >= MIN_STEPS and step.sum() > 0 else None,
        gap_s=_mean(data - np.nan_to_num(rows["copy_s"]) if has_device else data),
        copy_s=_mean(rows["copy_s"]) if has_device and not np.isnan(rows["copy_s"]).any() else None,
        fetch_s=_mean(fetch) if is_ready_known.all() else None,
        host_wait_s=_mean(rows["host_wait_s"]),
        hidden_s=_mean(np.maximum(0, rows["host_wait_s"] - rows["gap_s"])) if has_device else None,
        exposed_by_sync_s=_mean(_exposed(rows, data, num_workers)) if has_device and has_syncs else None,
        sync_share=_mean(syncs) if has_syncs else None,
        idle_share=_mean(is_idle[~syncs]) if has_device and (~syncs).sum() * 2 > len(rows) else None,
        ahead_share=_mean(rows["is_ahead"][rows["is_ahead"] >= 0]) if has_device else None,
        ready_share=_mean(rows["num_ready"][is_ready_known] > 0),
        updates_per_batch=_mean(rows["num_updates"][is_update_known]),
    )


def data_times(rows: Steps, basis: Basis) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return (waiting for data, the rest of the idle time in next(), the whole step): each (n,) seconds."""
    gap = rows["gap_s"] if basis == "device" else rows["host_wait_s"]
    work = rows["work_s"] if basis == "device" else rows["host_work_s"]
    copy = np.nan_to_num(rows["copy_s"]) if basis == "device" else np.zeros(len(rows))
    is_fetch = (rows["num_ready"] > 0) & (gap <= RESOLUTION_S)
    return np.where(is_fetch, 0.0, gap) + copy, np.where(is_fetch, gap, 0.0), gap + copy + work


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


class VerdictKind(enum.Enum):
    """The limit of a step's time."""

    DATA_BOUND = "data-bound"  # the device waits for data
    SYNC_EXPOSED = "sync-exposed"  # the same, but because the loop waits for the device in every step
    HOST_BOUND = "host-bound"  # the device waits for the host: Python, launching kernels
    COMPUTE_BOUND = "compute-bound"  # the device is busy
    NOT_ENOUGH = "not enough steps"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one rank."""

    kind: VerdictKind
    severity: Severity | None  # of the starvation; None if unknown
    reason: str
    figures: Figures
    rank: int | None = None  # the rank, if it is given

    @property
    def starvation(self) -> Interval | None:
        """The share of the time spent waiting for data."""
        return self.figures.starvation

    @property
    def is_device(self) -> bool:
        """True if the device's idle time was measured, not the host's wait."""
        return self.figures.basis == "device"


def severity_of(starvation: float) -> Severity:
    """Return the severity of a share of time spent waiting for data."""
    return "fine" if starvation < MODERATE else "moderate" if starvation < HIGH else "high"


def judge(figures: Figures, context: Context | None = None) -> Verdict:
    """Return one rank's verdict. `context`: the bracket's knowledge besides the steps."""
    if context is not None and context.trains_elsewhere:
        reason = (
            "the loader is read by another thread than the one that trains, so its waiting is not the training's; "
            "measure the outermost iterator, the one that the training loop itself reads"
        )
        return Verdict(VerdictKind.NOT_MEASURED, None, reason, figures)
    share = figures.starvation
    if context is not None and context.thread is not None and figures.updates_per_batch == 0:
        reason = (
            f"the loader is read by the thread {context.thread!r}, in which nothing is trained: if it feeds the training loop, "
            "its waiting is not the loop's; iterate datapipe.Monitor over what the loop itself reads"
        )
        return Verdict(VerdictKind.NOT_MEASURED, None, reason, figures)
    if share is None or not (figures.is_settled or share.low >= MODERATE):
        return Verdict(VerdictKind.NOT_ENOUGH, None, _too_few(figures), figures)
    if severity_of(share.low) == "fine" and severity_of(share.high) == "high":
        reason = f"the interval {_percent(share)} of {figures.num_steps} steps is too wide to decide; run longer"
        return Verdict(VerdictKind.NOT_ENOUGH, None, reason, figures)
    severity = severity_of(share.value)
    if severity != "fine":
        return _data_verdict(figures, share, severity)
    return _other_verdict(figures, share)


def _data_verdict(figures: Figures, share: Interval, severity: Severity) -> Verdict:
    assert figures.step_s is not None
    assert figures.data_s is not None
    who = "the device waits for data" if figures.basis == "device" else "the host waits in next() (no device was measured)"
    reason = f"{who} {figures.data_s * 1e3:.1f} ms of each {figures.step_s * 1e3:.1f} ms step, {_percent(share)}"
    if figures.has_short_passes:
        reason += "; its passes are too short to tell whether it has settled, so this is of the second half of all of them"
    elif not figures.is_settled:
        reason += "; the loop has not settled, so this is of the second half of its passes, and may change further"
    if figures.copy_s is not None and figures.copy_s > figures.data_s / 2:
        reason += f"; {figures.copy_s * 1e3:.1f} ms of it in copies from the host that the loop itself requests"
    if figures.exposed_by_sync_s and (figures.data_s - figures.exposed_by_sync_s) / figures.step_s < MODERATE:
        reason += (
            f"; it waits for the device in {figures.sync_share:.0%} of the steps, and without that up to "
            f"{figures.exposed_by_sync_s * 1e3:.1f} ms would be hidden behind its work"
        )
        return Verdict(VerdictKind.SYNC_EXPOSED, severity, reason, figures)
    if figures.exposed_by_sync_s:
        reason += f"; up to {figures.exposed_by_sync_s * 1e3:.1f} ms of it exposed by waiting for the device in the loop"
    return Verdict(VerdictKind.DATA_BOUND, severity, reason, figures)


def _other_verdict(figures: Figures, share: Interval) -> Verdict:
    if figures.basis == "host":
        reason = f"the host waits {_percent(share)} of the time in next(); other delays were not measured"
        return Verdict(VerdictKind.COMPUTE_BOUND, "fine", reason, figures)
    if figures.idle_share is not None and figures.idle_share > 0.5:
        reason = (
            f"data takes {_percent(share)}, but in {figures.idle_share:.0%} of the steps the device had run out of work "
            "before the next batch was requested: Python and launching kernels take longer than the kernels"
        )
        return Verdict(VerdictKind.HOST_BOUND, "fine", reason, figures)
    reason = f"data takes {_percent(share)}; the device has work while the next batch is fetched"
    if figures.sync_share is not None and figures.sync_share > 0.5:
        reason = f"data takes {_percent(share)}; the loop waits for the device in {figures.sync_share:.0%} of the steps"
    elif figures.ahead_share is not None and figures.ahead_share < 0.5:
        reason += "; the host is less than a step ahead of it, so a profile may show gaps between its kernels"
    return Verdict(VerdictKind.COMPUTE_BOUND, "fine", reason, figures)


def _too_few(figures: Figures) -> str:
    if figures.has_short_passes and figures.starvation is not None:
        return (
            f"its passes are too short to tell whether the loop has settled; in the second half of all of them "
            f"{_percent(figures.starvation)} of the time was waiting; pass more batches per epoch"
        )
    if not figures.is_settled and figures.starvation is not None:
        return (
            f"the loop has not settled: steps go on changing, or a buffer goes on draining; in the second half of its passes "
            f"{_percent(figures.starvation)} of the time was waiting; run longer"
        )
    apart = f"{figures.num_first} first steps of passes and {figures.num_unsettled} before the loop settled are excluded"
    needed = f"a pass of {MIN_STEPS + 1} steps is needed, or {2 * MIN_STEPS} steps in all that clearly wait"
    return f"{figures.num_steps} steps of a steady state ({apart}); {needed}; run longer, or pass more batches per epoch"


def _percent(share: Interval) -> str:
    return f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}]"
