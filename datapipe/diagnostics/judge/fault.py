"""Find the stage at fault from the shares of stages, and explain it in words. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from datapipe.diagnostics.judge.breakdown import Stage

STARTUP: Stage = ("startup", None)
IDLE: Stage = ("idle", None)
_NEGLIGIBLE = 0.05  # share of all waiting

MEANINGS = {
    "read": "waiting inside __getitem__: for storage, the network or a lock",
    "network": "waiting for an object store (remote=datapipe.Remote(cache_dir=...) keeps its shards on a local disk)",
    "decode": "CPU time of __getitem__ outside its transforms, such as decoding",
    "transform": "transforms",
    "augment": "pixel operations",
    "collate": "putting batches together",
    "transfer": "moving batches from the workers to the training process",
    "pin": "copying batches into pinned memory",
    "copy": "copying batches to the device",
    "sampler": "the training process itself, around the loader: its sampler, or handing out batches",
    "plan": "order, index look-up and draws",
    "cores": "waiting for a CPU core: more threads run than there are cores",
    "startup": "starting workers",
    "idle": "workers without a batch to make, or batches that were ready",
}


@dataclass(frozen=True, slots=True)
class StageShare:
    """The shares of one stage, out of all stages, over which they add up to 1; None: there was nothing to share."""

    stage: str  # one of MEANINGS
    name: str | None  # of a transform
    of_wait: float | None  # of the time the consumer waited: decides the fault
    of_work: float | None  # of the time that making and moving batches took, waited for or not


@dataclass(frozen=True, slots=True)
class Attribution:
    """The reason why a consumer waited."""

    stage: str | None  # the stage at fault; None: there was no waiting
    name: str | None  # of the transform, if the stage is transforms
    worker: int | None  # the one most at fault; None: no worker is
    wait_s: float
    head_of_line_s: float | None  # part of wait_s with later batches ready, but not the next; None: does not apply
    num_batches: int
    shares: tuple[StageShare, ...]  # the largest part of the wait first
    reason: str


def shares_of(wait_ns: Mapping[Stage, float], work_ns: Mapping[Stage, float]) -> tuple[StageShare, ...]:
    """Return the shares of waiting and of work, stage by stage."""
    all_wait, all_work = sum(wait_ns.values()), sum(work_ns.values())
    shares = [
        StageShare(
            stage,
            name,
            wait_ns.get((stage, name), 0.0) / all_wait if all_wait else None,
            work_ns.get((stage, name), 0.0) / all_work if all_work else None,
        )
        for stage, name in {**wait_ns, **work_ns}
    ]
    kept = [share for share in shares if share.of_wait or share.of_work]
    return tuple(sorted(kept, key=lambda share: (-(share.of_wait or 0), -(share.of_work or 0), share.stage, share.name or "")))


def joined(parts: Sequence[Attribution]) -> Attribution | None:
    """Join attributions of one loader, weighted by their waits; None for none. No worker is blamed."""
    if not parts:
        return None
    wait_ns: defaultdict[Stage, float] = defaultdict(float)
    work: defaultdict[Stage, float] = defaultdict(float)
    for part in parts:
        for one in part.shares:
            wait_ns[one.stage, one.name] += (one.of_wait or 0.0) * part.wait_s * 1e9
            work[one.stage, one.name] += (one.of_work or 0.0) * part.num_batches
    shares = shares_of(wait_ns, work)
    kind, name, share = find_fault(shares)
    blocked = [part.head_of_line_s for part in parts if part.head_of_line_s is not None]
    wait_s = sum(part.wait_s for part in parts)
    return Attribution(
        stage=kind,
        name=name,
        worker=None,
        wait_s=wait_s,
        head_of_line_s=sum(blocked) if blocked else None,
        num_batches=sum(part.num_batches for part in parts),
        shares=shares,
        reason=in_words(kind, name, share, worker=None, head_of_line=sum(blocked) / wait_s if blocked and wait_s else None),
    )


def find_fault(shares: tuple[StageShare, ...]) -> tuple[str | None, str | None, float]:
    """Return the kind of stage with most of the wait, the transform with most of that, and the share.

    Starting up counts only if there is little else: it happens once.
    """
    by_kind: defaultdict[str, float] = defaultdict(float)
    for share in shares:
        by_kind[share.stage] += share.of_wait or 0.0
    if not any(by_kind.values()):
        return None, None, 0.0
    rest = {kind: value for kind, value in by_kind.items() if kind != STARTUP[0]}
    if sum(rest.values()) < _NEGLIGIBLE:
        return STARTUP[0], None, by_kind[STARTUP[0]]
    kind = max(rest, key=lambda kind: rest[kind])
    names = [share for share in shares if share.stage == kind and share.name is not None]
    return kind, names[0].name if names else None, rest[kind]


def in_words(kind: str | None, name: str | None, share: float, *, worker: int | None, head_of_line: float | None) -> str:
    """Return the reason in one or two sentences."""
    if kind is None:
        return "no time was spent waiting for batches"
    what = MEANINGS[kind] + (f", most of it {name}" if name else "")
    sentences = [f"{share:.0%} of the waiting is {what}."]
    if worker is not None:
        sentences.append(f"Worker {worker} is much slower than the others, and most of the waiting is for its batches.")
    if head_of_line is not None and head_of_line >= 0.2:
        sentences.append(
            f"{head_of_line:.0%} of the time later batches were ready, but not the next one; in_order=False takes them."
        )
    return " ".join(sentences)
