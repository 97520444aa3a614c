"""Orders of samples: the k-th sample of an epoch as arithmetic.

An order maps positions of an epoch, 0 <= k < n, to positions of the dataset's id list. It holds no
list (below 2^16 a small table) and no state, so any process can ask for any part of any epoch.

Large permutations are Feistel networks over the smallest even number of bits that holds n, walked
until the value falls below n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from datapipe.order.draws import key64, mix64

TABLE_LIMIT = 1 << 16  # below it Feistel networks are visibly biased; a sorted table is exact and small
MAX_LANES = 16
ABSENT = -1  # in place of a position of the dataset: the batch has no sample there
_ROUNDS = 6


class Order(Protocol):
    """A map from positions of an epoch to positions of the dataset.

    An order in which samples may come several times has a further method, `occurrences(epoch, positions)`, which returns (m,) a
    number from 0 for each position, different for each occurrence of a sample. One that fills steps up itself has a method
    `fills(epoch, positions)`, which returns (m,) whether each is such a repeat; it is asked for positions beyond its length, to
    the end of the last step, and may give the position ABSENT, which makes a batch smaller.
    """

    @property
    def kind(self) -> str:
        """The name in saved states: a state resumes only under the order that made it."""

    def __len__(self) -> int: ...

    def __call__(self, epoch: int, positions: NDArray[np.int64], /) -> NDArray[np.int64]:
        """Return the dataset positions, int64, of these positions; a bijection of range(len) unless samples repeat."""


@dataclass(frozen=True, slots=True)
class SequentialOrder:
    """Every epoch in the dataset's own order."""

    num_samples: int
    kind: str = "sequential"

    def __len__(self) -> int:
        return self.num_samples

    def __call__(self, epoch: int, positions: NDArray[np.int64], /) -> NDArray[np.int64]:
        return positions


@dataclass(frozen=True, slots=True)
class ShuffledOrder:
    """A full shuffle, another one every epoch."""

    num_samples: int
    seed: int
    kind: str = "shuffled"

    def __len__(self) -> int:
        return self.num_samples

    def __call__(self, epoch: int, positions: NDArray[np.int64], /) -> NDArray[np.int64]:
        return Permutation(self.num_samples, int(key64(self.seed, epoch)))(positions)


@dataclass(frozen=True, slots=True, eq=False)
class WindowedOrder:
    """A shuffle for data that is read a row group at a time: few row groups are in use at once, each is read once.

    The row groups of an epoch are put in random order and their samples are dealt to *lanes*: stretches of that sequence,
    all equally long. Every step takes an equal share of each lane, and a lane is shuffled in windows of the size of
    a row group or two. Lanes depend on the samples per step over all ranks, not on the number of ranks: resuming on
    another number of ranks changes nothing, and if the number of ranks divides that of lanes, each owns whole lanes. The windows
    of different lanes end at different steps, so that row groups are needed one after the other.
    """

    starts: NDArray[np.int64]  # (g + 1,) positions at which the row groups begin, and the number of samples
    seed: int
    global_batch: int
    max_lanes: int = MAX_LANES  # fewer if row groups are large, as those of every lane are in use at once
    kind: str = "windowed"

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __call__(self, epoch: int, positions: NDArray[np.int64], /) -> NDArray[np.int64]:
        return self._in_row_groups(epoch, self._in_windows(epoch, self._in_lanes(np.asarray(positions, np.int64))))

    @property
    def num_lanes(self) -> int:
        """The largest divisor of the samples per step that is at most `max_lanes` and MAX_LANES."""
        return max(lanes for lanes in range(1, min(self.max_lanes, MAX_LANES) + 1) if self.global_batch % lanes == 0)

    @property
    def _lane_length(self) -> int:
        return max(1, len(self) // self.global_batch * (self.global_batch // self.num_lanes))

    @property
    def _window(self) -> int:
        """Samples that are shuffled with each other: two row groups of average size, or a lane."""
        return max(1, min(2 * -(-len(self) // max(1, len(self.starts) - 1)), self._lane_length))

    def _in_lanes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return places in the lanes laid end to end; after them the samples that fill no step, in order."""
        share, num_steps = self.global_batch // self.num_lanes, len(self) // self.global_batch
        steps, within = np.divmod(positions, self.global_batch)
        lanes, offsets = np.divmod(within, share)
        return np.where(steps < num_steps, (lanes * num_steps + steps) * share + offsets, positions)

    def _in_windows(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return places in the sequence of row groups: shuffled within each window of each lane."""
        num_samples, lane_length, window = len(self), self._lane_length, self._window
        lanes = np.minimum(places // lane_length, self.num_lanes)
        lags = lanes * window // self.num_lanes
        numbers = (places - lanes * lane_length + lags) // window
        shuffled = np.empty_like(places)
        for lane, lag, number in {*zip(lanes.tolist(), lags.tolist(), numbers.tolist(), strict=True)}:
            here = (lanes == lane) & (numbers == number)
            start = lane * lane_length - lag + number * window
            first = max(start, lane * lane_length)
            end = min(start + window, num_samples if lane == self.num_lanes else (lane + 1) * lane_length)
            shuffled[here] = first + Permutation(end - first, int(key64(self.seed, epoch, lane, number)))(places[here] - first)
        return shuffled

    def uses(self, epoch: int) -> list[Use]:
        """When the row groups of an epoch are needed, by first step; what two lanes share is there twice."""
        num_steps, num_lanes, share = len(self) // self.global_batch, self.num_lanes, self.global_batch // self.num_lanes
        groups, ends = self._sequence(epoch)
        window, lane_length = self._window, num_steps * share
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for lane in range(num_lanes + 1):
            start, lag = lane * lane_length, lane * window // num_lanes
            stop = len(self) if lane == num_lanes else start + lane_length
            for begin in range(start - lag, stop, window):
                first, last = max(begin, start), min(begin + window, stop) - 1
                if last < first:
                    continue
                steps = (num_steps, num_steps) if lane == num_lanes else ((first - start) // share, (last - start) // share)
                for place in range(int(np.searchsorted(ends, first, "right")), int(np.searchsorted(ends, last, "right")) + 1):
                    key = (int(groups[place]), lane)
                    found[key] = (min(steps[0], found.get(key, steps)[0]), steps[1])
        uses = [Use(group, lane, *steps) for (group, lane), steps in found.items() if self.starts[group] < self.starts[group + 1]]
        return sorted(uses, key=lambda use: (use.first_step, use.last_step, use.lane))

    def lanes_of(self, rank: int, world_size: int) -> range:
        """The lanes that a rank takes its share of full steps from."""
        batch, share = self.global_batch // world_size, self.global_batch // self.num_lanes
        return range(rank * batch // share, ((rank + 1) * batch - 1) // share + 1)

    def _sequence(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row groups in this epoch's order, and where each ends in it."""
        num_groups = len(self.starts) - 1
        groups = Permutation(num_groups, int(key64(self.seed, epoch)))(np.arange(num_groups, dtype=np.int64))
        return groups, np.cumsum(np.diff(self.starts)[groups])

    def _in_row_groups(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in the dataset of places in this epoch's sequence of row groups."""
        groups, ends = self._sequence(epoch)
        which = np.searchsorted(ends, places, side="right")
        within: NDArray[np.int64] = places - np.concatenate([[0], ends])[which]
        return self.starts[groups[which]] + within


@dataclass(frozen=True, slots=True)
class Use:
    """The steps of an epoch between which samples of a row group are needed by one lane."""

    group: int
    lane: int  # the number of lanes for the samples that fill no step
    first_step: int
    last_step: int  # inclusive


@dataclass(frozen=True, slots=True, eq=False)
class StoredWindowsOrder:
    """A windowed shuffle over samples as they are stored, whatever their positions in the dataset are.

    `positions_of` maps places in the stored order, over which `windows` goes, to positions in the dataset. States name the
    lanes and the groups, so that one resumes only where they are the same.
    """

    windows: WindowedOrder
    positions_of: Callable[[NDArray[np.int64]], NDArray[np.int64]]

    @property
    def kind(self) -> str:
        return f"windows over {len(self.windows.starts) - 1} groups in {self.windows.num_lanes} lanes"

    def __len__(self) -> int:
        return len(self.windows)

    def __call__(self, epoch: int, positions: NDArray[np.int64], /) -> NDArray[np.int64]:
        return self.positions_of(self.windows(epoch, positions))


@dataclass(frozen=True, slots=True)
class Permutation:
    """A pseudorandom bijection of range(n) and its inverse, chosen by a 64-bit key."""

    num_samples: int
    key: int

    def __call__(self, positions: NDArray[np.int64], /) -> NDArray[np.int64]:
        if self.num_samples < TABLE_LIMIT:
            return _table(self.num_samples, self.key)[positions]
        return self._walk(positions, forward=True)

    def inverse(self, values: NDArray[np.int64], /) -> NDArray[np.int64]:
        """Return the positions of these values: `p.inverse(p(k)) == k`."""
        if self.num_samples < TABLE_LIMIT:
            return _inverse_table(self.num_samples, self.key)[values]
        return self._walk(values, forward=False)

    def _walk(self, positions: NDArray[np.int64], *, forward: bool) -> NDArray[np.int64]:
        half_bits = (max(2, (self.num_samples - 1).bit_length()) + 1) // 2
        keys = [key64(self.key, half_bits, number) for number in range(_ROUNDS)]
        apply = _feistel if forward else _feistel_inverse
        words = apply(np.asarray(positions).astype(np.uint64), keys, half_bits)
        outside = np.flatnonzero(words >= self.num_samples)
        while len(outside):  # cycle walking: fewer than 3 rounds on average, as the domain is below 4n
            words[outside] = apply(words[outside], keys, half_bits)
            outside = outside[words[outside] >= self.num_samples]
        return words.astype(np.int64)


def _feistel(words: NDArray[np.uint64], keys: list[np.uint64], half_bits: int) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> shift, words & mask
    for key in keys:
        left, right = right, left ^ (mix64(right ^ key) & mask)
    return (left << shift) | right


def _feistel_inverse(words: NDArray[np.uint64], keys: list[np.uint64], half_bits: int) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> shift, words & mask
    for key in reversed(keys):
        left, right = right ^ (mix64(left ^ key) & mask), left
    return (left << shift) | right


@functools.lru_cache(maxsize=64)  # a windowed order has a small one for each lane
def _table(num_samples: int, key: int) -> NDArray[np.int64]:
    """Return a permutation below 2^16: positions sorted by their hashes (equal hashes keep their order)."""
    table = np.argsort(mix64(np.arange(num_samples, dtype=np.uint64) ^ mix64(np.full(1, key, np.uint64))), kind="stable")
    table.setflags(write=False)
    return table


@functools.lru_cache(maxsize=16)
def _inverse_table(num_samples: int, key: int) -> NDArray[np.int64]:
    table = np.argsort(_table(num_samples, key))
    table.setflags(write=False)
    return table
