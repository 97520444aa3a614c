"""The parts of a torch loader that read a user's Dataset with deferral and seeded samples."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.utils.data

from datapipe.adapt.deferral.dataset import BatchRequest, DeferringDataset
from datapipe.adapt.deferral.seeds import sample_seeds
from datapipe.order.draws import apart
from datapipe.order.plan import Picks

_PLACES = 1 << 24  # of a batch; separates the samples of a sampler's batches


def request_of_picks(picks: Picks, seed: int) -> BatchRequest:
    """Return the request for a batch of positions; a sample's seed depends on its position and occurrence."""
    return BatchRequest(
        picks.positions.tolist(), sample_seeds(seed, picks.after.epoch, apart(picks.positions, picks.occurrences))
    )


def request_of_keys(keys: Any, seed: int, epoch: int, step: int, rank: int) -> BatchRequest:
    """Return the request for a batch that a batch sampler gave; a sample's seed depends on its place in the epoch."""
    num = len(keys) if isinstance(keys, Sized) else 1
    places = np.arange(num, dtype=np.int64) + step * _PLACES
    return BatchRequest(keys, sample_seeds(seed ^ rank << 32, epoch, places))


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """A `worker_init_fn` that puts the user's Dataset into `get_worker_info()`, and then calls the user's own."""

    worker_init_fn: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        info: Any = torch.utils.data.get_worker_info()
        if info is not None and isinstance(info.dataset, DeferringDataset):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # torch's class forbids assignment
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)
