"""Charge waiting to Python's global lock, where another thread takes it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from datapipe.analysis.judge.breakdown import Stage
from datapipe.analysis.judge.fault import LOCK
from datapipe.instruments.measure.lock_use import LockHolder, LockUse

_OFTEN = 0.25  # of the wake-ups: a lock that is taken less often is at fault for nothing


def holder_of(lock: LockUse | None) -> LockHolder | None:
    """Return the thread that takes the lock often; None if none does."""
    return lock.holders[0] if lock is not None and lock.holders and lock.late_share >= _OFTEN else None


def charged_to_lock(wait_ns: Mapping[Stage, float], lock: LockUse | None, here: Collection[Stage]) -> dict[Stage, float]:
    """Return the waiting by stage, with the lock's share taken from the stages of the training process, `here`.

    They are short work that gives up the lock and takes it again, so their time is waiting for it as often as the lock was taken.
    """
    if lock is None or holder_of(lock) is None:
        return dict(wait_ns)
    share = {stage: lock.late_share if stage in here else 0.0 for stage in wait_ns}
    charged = {stage: value * (1 - share[stage]) for stage, value in wait_ns.items()}
    charged[LOCK] = sum(value * share[stage] for stage, value in wait_ns.items())
    return charged
