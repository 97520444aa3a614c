"""Say what usually makes a stage faster, where it can only be done by hand. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datapipe.diagnostics.torch_stages.profile import BatchProfile

_SMALL = 8 << 10  # bytes of a sample below which fixed costs per sample prevail
_UINT8 = "a quarter of the bytes if the batch is float32"
_ALWAYS = {
    "pin": f"return uint8 from __getitem__ and convert on the device: {_UINT8}",
    "copy": f"copy uint8 to the device and convert there: {_UINT8}",
    "transform": "run it on the device over the whole batch, or use a form of it that works on tensors",
    "augment": "run it on the device over the whole batch",
}


@dataclass(frozen=True, slots=True)
class LoaderSituation:
    """What the advice depends on."""

    num_workers: int = 0
    sample_nbytes: float | None = None  # mean size of a sample in a batch; None: unknown
    has_own_sampler: bool = False
    workers_wait: bool = False  # for each other


def situation_of(
    profiles: Sequence[BatchProfile], *, num_workers: int, has_own_sampler: bool, workers_wait: bool
) -> LoaderSituation:
    """Return the situation of a loader. `profiles`: of its batches."""
    sizes = [one.made.nbytes / one.made.num_samples for one in profiles if one.made.nbytes is not None and one.made.num_samples]
    return LoaderSituation(num_workers, float(np.mean(sizes)) if sizes else None, has_own_sampler, workers_wait)


def advice_for(stage: str, situation: LoaderSituation) -> str | None:
    """Return what to try for a stage at fault; None if there is no general advice."""
    is_small = situation.sample_nbytes is not None and situation.sample_nbytes < _SMALL
    match stage:
        case "sampler" if situation.has_own_sampler:
            return "draw the order of an epoch as one array (torch.randperm, torch.multinomial), and yield its values"
        case "sampler":
            return "return fewer, larger arrays per batch, and let go of a batch before asking for the next one"
        case "collate" if not situation.num_workers:
            return "collate in a worker (num_workers=1); make arrays of one shape in __getitem__, so that it is one torch.stack"
        case "collate":
            return "make arrays of one shape in __getitem__, so that collating is one torch.stack"
        case "transfer" if is_small:
            return "return fewer, larger arrays: each tensor of a batch costs a message and a file descriptor, whatever its size"
        case "transfer":
            return f"return uint8 from the workers and convert on the device: {_UINT8}"
        case "read" if situation.workers_wait:
            return "give each worker a file, connection or lock of its own; a saturated disk needs fewer bytes per sample"
        case "read" | "decode" if is_small:
            return "fewer, larger reads: fetch a whole batch in __getitems__, or store many samples per file (datapipe convert)"
        case "read":
            return "keep the data on a faster disk, or in larger files that are read in order (datapipe convert)"
        case "decode":
            return "store images at about the size that is trained on (datapipe convert --resize)"
        case _:
            return _ALWAYS.get(stage)
