"""Orders: the k-th sample of an epoch as arithmetic.

An order maps positions of an epoch, 0 <= k < n, to positions of the dataset's id list. It holds no
list (below 2^16 a small table) and no state, so any process can ask for any part of any epoch.

Large permutations are Feistel networks over the smallest even number of bits that holds n, walked
until the value falls below n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from datapipe.draws import key64, mix64

TABLE_LIMIT = 1 << 16  # below it Feistel networks are visibly biased; a sorted table is exact and small
_ROUNDS = 6


class Order(Protocol):
    """What a plan asks for positions."""

    @property
    def kind(self) -> str:
        """Kept in saved states: a state resumes only under the order that made it."""

    def __len__(self) -> int: ...

    def __call__(self, epoch: int, positions: NDArray[np.int64], /) -> NDArray[np.int64]:
        """The dataset positions, int64, of these positions of the epoch; a bijection of range(len)."""


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
        """The positions at which these values stand: `p.inverse(p(k)) == k`."""
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


@functools.lru_cache(maxsize=16)
def _table(num_samples: int, key: int) -> NDArray[np.int64]:
    """A permutation below 2^16: positions sorted by their hashes (equal hashes keep their order)."""
    table = np.argsort(mix64(np.arange(num_samples, dtype=np.uint64) ^ mix64(np.full(1, key, np.uint64))), kind="stable")
    table.setflags(write=False)
    return table


@functools.lru_cache(maxsize=16)
def _inverse_table(num_samples: int, key: int) -> NDArray[np.int64]:
    table = np.argsort(_table(num_samples, key))
    table.setflags(write=False)
    return table
