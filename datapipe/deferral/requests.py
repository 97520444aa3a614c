"""Requests for the samples of a batch, with the seeds of the random states in which they are made; which seeds are needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipe.kernel.random_state import ALL_STATES, collation_seed, random_mark
from datapipe.kernel.state_readers import may_read_state
from datapipe.order.draws import apart, key64, mix64
from datapipe.order.plan import Picks, Rank

MIN_WATCHED = 64  # samples that are seeded and watched in each process before seeds are left out
_PLACES = 1 << 24  # of a batch; separates the samples of a sampler's batches
_SAMPLES = 0x5EED  # separates these draws from those of operations, whose numbers are small


class CollationKey(NamedTuple):
    """The numbers that decide the random state in which the user's `collate_fn` is called for a batch."""

    seed: int
    epoch: int
    step: int
    rank: int
    world_size: int

    @property
    def value(self) -> int:
        """The seed of that state, from 0 to 2^63 - 1."""
        return collation_seed(self.seed, self.epoch, self.step, Rank(self.rank, self.world_size))


@dataclass(slots=True)  # not frozen, which takes four times as long to make, and one is made for each batch
class BatchRequest:
    """A request for the samples of a batch: their keys, and their seeds (None: leave the random state alone)."""

    keys: Any
    seeds: Sequence[int] | None
    may_be_encoded: bool = True  # whether images may be left to DALI, where the dataset does that
    is_recorded: bool = True  # whether images may be deferred, where the dataset does that
    is_watched: bool = False  # whether images are traced if they are not
    collation: CollationKey | None = None  # for the user's collate_fn; None: leave the random state alone

    def __len__(self) -> int:
        """Return the number of samples; 1 for a key of another kind, which the dataset's `__getitems__` may take."""
        return len(self.keys) if isinstance(self.keys, Sized) else 1

    def __reduce__(self) -> tuple[Any, ...]:
        about = self.keys, self.seeds, self.may_be_encoded, self.is_recorded, self.is_watched, self.collation
        return BatchRequest, about  # in a quarter of the time that dataclasses take

    @classmethod
    def of(cls, key: Any) -> BatchRequest:
        """Return the request that a key stands for: itself, or bare keys."""
        return key if isinstance(key, BatchRequest) else cls(key, None)

    def with_values(self) -> BatchRequest:
        """Return the request for the same samples with no image left to DALI."""
        return dataclasses.replace(self, may_be_encoded=False)


class SampleSeeds(Sequence[int]):
    """A seed per sample of a batch, from 0 to 2^63 - 1. Calculated when the first one is asked for: many batches need none.

    `places`: what identifies each sample among those of an epoch, int64.
    """

    __slots__ = ("_epoch", "_places", "_seed", "_values")

    def __init__(self, seed: int, epoch: int, places: Sequence[int] | NDArray[np.int64]) -> None:
        self._seed, self._epoch, self._places = seed, epoch, places
        self._values: list[int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleSeeds, (self._seed, self._epoch, self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: Any) -> Any:
        if self._values is None:
            self._values = self.values()
        return self._values[number]

    def values(self) -> list[int]:
        """Return the seeds."""
        places = np.asarray(self._places, np.int64).astype(np.uint64)
        words = mix64(places * np.uint64(0x9E3779B97F4A7C15) ^ key64(self._seed, self._epoch, _SAMPLES))
        return (words >> np.uint64(1)).tolist()  # type: ignore[no-any-return]


def calculated(keys: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield the keys of a pass, the seeds calculated already: a process that has just been forked takes longer for it."""
    for key, after in keys:
        if isinstance(key, BatchRequest) and isinstance(key.seeds, SampleSeeds):
            key.seeds = key.seeds.values()
        yield key, after


def request_of_picks(picks: Picks, seed: int, rank: Rank, keys: Any = None) -> BatchRequest:
    """Return the request for a batch of positions; a sample's seed depends on its position and occurrence.

    `keys`: those of the samples in the dataset; None: their positions.
    """
    epoch = picks.after.epoch
    positions = picks.positions.tolist()
    return BatchRequest(
        positions if keys is None else keys,
        SampleSeeds(seed, epoch, positions if picks.occurrences is None else apart(picks.positions, picks.occurrences)),
        collation=CollationKey(seed, epoch, picks.step, rank.rank, rank.world_size),
    )


def request_of_keys(keys: Any, seed: int, epoch: int, step: int, rank: Rank) -> BatchRequest:
    """Return the request for a batch that a batch sampler gave; a sample's seed depends on its place in the epoch."""
    first, num = step * _PLACES, len(keys) if type(keys) is list or isinstance(keys, Sized) else 1
    seeds = SampleSeeds(seed ^ rank.rank << 32, epoch, range(first, first + num))
    return BatchRequest(keys, seeds, collation=CollationKey(seed, epoch, step, rank.rank, rank.world_size))


class SeedsSeen(NamedTuple):
    """The random states from which samples drew in a process, and how many samples it watched."""

    drawn: frozenset[str]
    num_watched: int  # samples


class SeedNeed:
    """The random states from which samples of a Dataset have drawn in this process, and whether others need no seeds.

    Most Datasets draw no random numbers, and seeds cost more than many a sample. A process seeds its first samples, and watches
    from which random states they draw: torch's, `random` or numpy's. If no code may read a state without drawing from it, later
    samples are made with seeds for these states alone. The others are compared before and after each batch. If one has changed,
    the batch is made again with all seeds, and that state is seeded from then on. Hence every batch is as if its samples had been
    seeded, whatever was seen before.
    """

    def __init__(self) -> None:
        self.drawn: frozenset[str] = frozenset()  # the states from which a sample has drawn, of ALL_STATES
        self._num_watched = 0
        self._looked_at: tuple[int, ...] | None = None  # ids of the Dataset and the values of its attributes
        self._may_read = True

    @property
    def is_watching(self) -> bool:
        """Whether samples that are seeded are to be made by `watched`."""
        return self._num_watched < MIN_WATCHED

    @property
    def seen(self) -> SeedsSeen:
        """Return what other processes are to learn of it."""
        return SeedsSeen(self.drawn, self._num_watched)

    def learn(self, seen: SeedsSeen) -> None:
        """Take over what another process has seen."""
        self.drawn |= seen.drawn
        self._num_watched = max(self._num_watched, seen.num_watched)

    def look_at(self, dataset: Any) -> None:
        """Look whether code of a Dataset may read the random state, if its attributes are others than before."""
        attributes = tuple(map(id, (dataset, *getattr(dataset, "__dict__", {}).values())))
        if attributes != self._looked_at:
            self._looked_at, self._may_read = attributes, may_read_state(dataset) is not None

    def watched(self, make: Callable[[Any], Any], key: Any) -> Any:
        """Return `make(key)`, and note whether it draws. Raises what it raises."""
        before = random_mark()
        try:
            return make(key)
        finally:
            self._num_watched += 1
            self.drawn |= ALL_STATES if before is None else before.changed(random_mark())

    def may_leave_out(self) -> bool:
        """Return whether seeds of other states than `drawn` may be left out, if these are compared before and after a batch."""
        return self._num_watched >= MIN_WATCHED and not self._may_read and self.drawn != ALL_STATES
