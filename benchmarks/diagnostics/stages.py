"""Which stage is to be blamed in each cell, and which one was."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.diagnostics.cells import COLOR, Cell
from datapipe.diagnostics.judge.attribution import SAMPLER, TRANSFER
from datapipe.diagnostics.judge.breakdown import COLLATE, CORES, DECODE, READ, Stage
from datapipe.diagnostics.judge.fault import Fault

_PLANTED: dict[str, Stage] = {
    "read": READ,
    "rank": READ,
    "sync": READ,
    "lock": READ,
    "bandwidth": READ,
    "worker": READ,
    "decode": DECODE,
    "augment": ("transform", COLOR),
    "collate": COLLATE,
    "transfer": TRANSFER,
}


def planted_stage(cell: Cell, waited_s: Mapping[Stage, float]) -> Stage | None:
    """Where the time goes that the device waits; None where that is no planted fault's: no stall in the loader, or one
    that takes less than all else that making a batch takes.

    `waited_s`: the caller's waiting by what the awaited worker did, as the loader itself knows. Where that was mostly
    waiting for a core, and not computing on one, cores are what is missing.
    """
    stage = _PLANTED.get(cell.place)
    if stage is None or not cell.is_mostly_stall:
        return None
    if stage == TRANSFER and not cell.num_workers:  # nothing is moved: the caller's part is its own
        return SAMPLER
    return CORES if waited_s.get(CORES, 0.0) > waited_s.get(stage, 0.0) else stage


def blamed_stage(found: Fault | None) -> Stage | None:
    """None: no stage was."""
    return None if found is None or found.fault is None else (found.fault, found.detail)


def in_short(stage: Stage | None) -> str:
    """A stage's kind, with the transform's name."""
    return "nothing" if stage is None else " ".join(filter(None, stage))
