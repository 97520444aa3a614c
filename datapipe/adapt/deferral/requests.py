"""Requests for the samples of a batch, with the seeds of the random states in which they are made and collated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.kernel.random_state import collation_seed
from datapipe.order.draws import apart, key64, mix64
from datapipe.order.plan import Picks, Rank

_PLACES = 1 << 24  # of a batch; separates the samples of a sampler's batches
_SAMPLES = 0x5EED  # separates these draws from those of operations, whose numbers are small


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request for the samples of a batch: their keys, and their seeds (None: leave the random state alone)."""

    keys: Any
    seeds: Sequence[int] | None
    may_be_encoded: bool = True  # whether images may be left to DALI, where the dataset does that
    is_recorded: bool = True  # whether images may be deferred, where the dataset does that
    collation_seed: int | None = None  # of the user's collate_fn; None: leave the random state alone

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, key: Any) -> BatchRequest:
        """Return the request that a key stands for: itself, or bare keys."""
        return key if isinstance(key, BatchRequest) else cls(key, None)

    def without_recording(self) -> BatchRequest:
        """Return the request for the same samples, made by the user's code alone."""
        return dataclasses.replace(self, is_recorded=False)

    def with_values(self) -> BatchRequest:
        """Return the request for the same samples with no image left to DALI."""
        return dataclasses.replace(self, may_be_encoded=False)


def request_of_picks(picks: Picks, seed: int, rank: Rank, keys: Any = None) -> BatchRequest:
    """Return the request for a batch of positions; a sample's seed depends on its position and occurrence.

    `keys`: those of the samples in the dataset; None: their positions.
    """
    epoch = picks.after.epoch
    return BatchRequest(
        picks.positions.tolist() if keys is None else keys,
        sample_seeds(seed, epoch, apart(picks.positions, picks.occurrences)),
        collation_seed=collation_seed(seed, epoch, picks.step, rank),
    )


def request_of_keys(keys: Any, seed: int, epoch: int, step: int, rank: Rank) -> BatchRequest:
    """Return the request for a batch that a batch sampler gave; a sample's seed depends on its place in the epoch."""
    num = len(keys) if isinstance(keys, Sized) else 1
    places = np.arange(num, dtype=np.int64) + step * _PLACES
    seeds = sample_seeds(seed ^ rank.rank << 32, epoch, places)
    return BatchRequest(keys, seeds, collation_seed=collation_seed(seed, epoch, step, rank))


def sample_seeds(seed: int, epoch: int, keys: NDArray[np.int64]) -> list[int]:
    """Return a seed per sample, from 0 to 2^63 - 1. `keys`: (n,) identify the samples of an epoch."""
    words = mix64(keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ key64(seed, epoch, _SAMPLES))
    return (words >> np.uint64(1)).tolist()  # type: ignore[no-any-return]
