"""Find the stage at fault from the shares of stages, and explain it in words; Python's lock, where it is that. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from datapipe.analysis.judge.bootstrap import Known
from datapipe.analysis.judge.breakdown import Stage
from datapipe.instruments.measure.observed import LockHolder, LockUse

STARTUP: Stage = ("startup", None)
LOCK: Stage = ("lock", None)
IDLE: Stage = ("idle", None)
_NEGLIGIBLE = 0.05  # share of all waiting
_OFTEN = 0.1  # of the wake-ups: a lock that is taken less often is at fault for nothing
_SWITCH_S = 5e-3  # sys.getswitchinterval(): a thread waits as long before it makes another one give up the lock

MEANINGS = {
    "read": "waiting inside __getitem__: for storage, the network or a lock",
    "network": "waiting for an object store (a datapipe.Remote(cache_dir=...) keeps its shards on a local disk)",
    "decode": "CPU time of __getitem__ outside its transforms, such as decoding",
    "dataset": "the Dataset's own code, except transforms and decoding",
    "transform": "transforms",
    "augment": "pixel operations",
    "collate": "putting batches together",
    "transfer": "moving batches from the workers to the training process",
    "pin": "copying batches into pinned memory",
    "copy": "copying batches to the device",
    "sampler": "the training process itself, around the loader: its sampler, or handing out batches",
    "plan": "order, index look-up and draws",
    "cores": "waiting for a CPU core: more threads run than there are cores",
    "lock": "waiting for Python's global lock, which another thread of the training process takes",
    "startup": "starting workers",
    "idle": "workers without a batch to make, or batches that were ready",
}


class StageOfWait(msgspec.Struct, frozen=True, kw_only=True):
    """A stage and its share of the waiting."""

    name: str  # one of MEANINGS
    detail: str | None = None  # with the name of the transform
    wait_s: Known = None
    share: Known = None  # of the waiting: decides the fault. Those of all stages add up to 1; None: nothing was waited for
    work_share: Known = None  # of the time to make and move batches, waited for or not

    @property
    def transform(self) -> str | None:
        """The name of the transform, if the stage is one."""
        return None if self.detail is None else self.detail.removeprefix(f"{self.name} ")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why the loop waited."""

    stages: tuple[StageOfWait, ...] = ()  # the largest part first
    fault: str | None = None  # the stage at fault; None: there was no waiting
    detail: str | None = None  # the name of the transform at fault
    reason: str = ""
    worker: int | None = None  # the one that is much slower than the others
    holder: LockHolder | None = None  # the thread that takes Python's lock, if that is at fault
    wait_s: Known = None
    head_of_line_s: Known = None  # part of wait_s with later batches ready, but not the next; None: does not apply


def fault_of(
    wait_ns: Mapping[Stage, float],
    work_ns: Mapping[Stage, float],
    *,
    wait_s: float,
    lock: LockUse | None,
    num_wake_ups: Mapping[Stage, float],
    worker: int | None = None,
    head_of_line: float | None = None,
) -> Fault:
    """Return the fault, from the waiting and the work by stage.

    `wait_s`: all waiting, also that which `wait_ns` has no stage for. `head_of_line`: a share of it. `lock`, `num_wake_ups`:
    as for `charged_to_lock`.
    """
    stages = _stages_of(charged_to_lock(wait_ns, lock, num_wake_ups), work_ns, wait_s)
    kind, transform, share = _find_fault(stages)
    found = Fault(
        stages=stages,
        fault=kind,
        detail=transform,
        worker=worker,
        holder=holder_of(lock) if kind == LOCK[0] else None,
        wait_s=wait_s,
        head_of_line_s=None if head_of_line is None else head_of_line * wait_s,
    )
    return msgspec.structs.replace(found, reason=_in_words(found, share, head_of_line))


def holder_of(lock: LockUse | None) -> LockHolder | None:
    """Return the thread that takes Python's global lock often; None if none does."""
    return lock.holders[0] if lock is not None and lock.holders and lock.late_share >= _OFTEN else None


def charged_to_lock(
    wait_ns: Mapping[Stage, float], lock: LockUse | None, num_wake_ups: Mapping[Stage, float]
) -> dict[Stage, float]:
    """Return the waiting by stage, with the time that the lock cost taken from the stages of the training process.

    `num_wake_ups`: how often the training process took the lock again in each of them. It found it taken as often as the
    sampler did, and then waited as long, or for the switch interval: the sampler may get the lock in passing, when another
    thread has waited for it.
    """
    if lock is None or holder_of(lock) is None:
        return dict(wait_ns)
    cost_ns = lock.late_share * max(_SWITCH_S, lock.late_s) * 1e9
    lost_ns = {stage: min(value, num_wake_ups.get(stage, 0.0) * cost_ns) for stage, value in wait_ns.items()}
    charged = {stage: value - lost_ns[stage] for stage, value in wait_ns.items()}
    charged[LOCK] = sum(lost_ns.values())
    return charged


def shares_by_kind(stages: Sequence[StageOfWait]) -> dict[str, float]:
    """Return the share of the waiting of each kind of stage; those of all transforms together are one kind's."""
    found: defaultdict[str, float] = defaultdict(float)
    for stage in stages:
        found[stage.name] += stage.share or 0.0
    return dict(found)


def _stages_of(wait_ns: Mapping[Stage, float], work_ns: Mapping[Stage, float], wait_s: float) -> tuple[StageOfWait, ...]:
    all_wait, all_work = sum(wait_ns.values()), sum(work_ns.values())
    stages = []
    for stage in {**wait_ns, **work_ns}:
        share = wait_ns.get(stage, 0.0) / all_wait if all_wait else None
        work_share = work_ns.get(stage, 0.0) / all_work if all_work else None
        if share or work_share:
            detail = None if stage[1] is None else " ".join(filter(None, stage))
            part_s = None if share is None else share * wait_s
            stages.append(StageOfWait(name=stage[0], detail=detail, wait_s=part_s, share=share, work_share=work_share))
    return tuple(sorted(stages, key=lambda one: (-(one.share or 0), -(one.work_share or 0), one.name, one.detail or "")))


def _find_fault(stages: tuple[StageOfWait, ...]) -> tuple[str | None, str | None, float]:
    """Return the kind of stage with most of the wait, the transform with most of that, and the share.

    Starting up counts only if there is little else: it happens once.
    """
    by_kind = shares_by_kind(stages)
    if not any(by_kind.values()):
        return None, None, 0.0
    rest = {kind: value for kind, value in by_kind.items() if kind != STARTUP[0]}
    if sum(rest.values()) < _NEGLIGIBLE:
        return STARTUP[0], None, by_kind[STARTUP[0]]
    kind = max(rest, key=lambda kind: rest[kind])
    transform = next((stage.transform for stage in stages if stage.name == kind and stage.detail is not None), None)
    return kind, transform, rest[kind]


def _in_words(found: Fault, share: float, head_of_line: float | None) -> str:
    """Return the reason in one or two sentences. `share`: of the stage at fault."""
    if found.fault is None:
        return "no time was spent waiting for batches"
    what = MEANINGS[found.fault] + (f", most of it {found.detail}" if found.detail else "")
    sentences = [f"{share:.0%} of the waiting is {what}."]
    if found.holder is not None:
        taken = f"{found.holder.cpu_share:.0%} of the CPU time of the Python threads"
        sentences.append(f"Thread {found.holder.thread!r} computes in {found.holder.where}, which takes {taken}.")
    if found.worker is not None:
        sentences.append(f"Worker {found.worker} is much slower than the others, and most of the waiting is for its batches.")
    if head_of_line is not None and head_of_line >= 0.2:
        sentences.append(
            f"{head_of_line:.0%} of the time later batches were ready, but not the next one; in_order=False takes them."
        )
    return " ".join(sentences)
