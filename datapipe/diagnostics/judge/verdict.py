"""The verdict: does the device lack data, and if not, what limits it; with the reason in words.

The limits are those of TensorFlow's profiler: an input share below 5% is fine; from 20% on, the training is highly
input-bound.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from datapipe.diagnostics.judge.bootstrap import Interval
from datapipe.diagnostics.judge.figures import Figures
from datapipe.diagnostics.measure.timeline import Context

MODERATE, HIGH = 0.05, 0.20
Severity = Literal["fine", "moderate", "high"]


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


def judge_ranks(verdicts: Sequence[Verdict], ranks: Sequence[int] | None = None) -> tuple[int, Verdict]:
    """Return the place of the slowest rank among `verdicts`, at least one, and its verdict, which counts for all.

    The slowest rank is the one that waits most for data: on the others its waiting appears as work, in the collectives.
    `ranks`: their numbers; those of other machines may be missing. None: the places.
    """
    place = max(range(len(verdicts)), key=lambda one: _waited_s(verdicts[one].figures))
    worst, rank = verdicts[place], place if ranks is None else ranks[place]
    reason = worst.reason
    if len(verdicts) > 1:
        known = [share.value for verdict in verdicts if (share := verdict.starvation) is not None]
        if known and max(known) >= MODERATE and min(known) < max(known) / 2:
            reason = f"rank {rank} alone holds up the others ({min(known):.1%} on the least affected): {reason}"
        else:
            reason = f"rank {rank}, the slowest of {len(verdicts)}: {reason}"
    return place, replace(worst, reason=reason, rank=rank)


def _data_verdict(figures: Figures, share: Interval, severity: Severity) -> Verdict:
    assert figures.step_s is not None
    assert figures.data_s is not None
    who = "the device waits for data" if figures.basis == "device" else "the host waits in next() (no device was measured)"
    reason = f"{who} {figures.data_s * 1e3:.1f} ms of each {figures.step_s * 1e3:.1f} ms step, {_percent(share)}"
    if not figures.is_settled:
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
    if not figures.is_settled and figures.starvation is not None:
        return (
            f"the loop has not settled: steps go on changing, or a buffer goes on draining; in the second half of its passes "
            f"{_percent(figures.starvation)} of the time was waiting; run longer"
        )
    apart = f"{figures.num_first} first steps of passes and {figures.num_unsettled} before the loop settled are excluded"
    return f"{figures.num_steps} steps of a steady state ({apart}); run longer, or pass more batches per epoch"


def _percent(share: Interval) -> str:
    return f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}]"


def _waited_s(figures: Figures) -> float:
    return -1.0 if figures.data_s is None else figures.data_s
