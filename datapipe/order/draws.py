"""Random numbers that depend on the sample, not on when they are drawn.

`Draws` gives every sample its own numbers from (seed, epoch, sample id, operation, draw). Threads,
ranks, batch size and position in the epoch have no influence, so resuming needs no saved generator state and
two backends given the same draws cut the same crop.

The generator is a counter hashed by `mix64`, the finaliser of SplitMix64 (Steele, Lea, Flood:
"Fast Splittable Pseudorandom Number Generators", OOPSLA 2014; constants of David Stafford's variant
13). All functions are pure and thread-safe.

`log_uniform` turns such numbers into others whose logarithm is uniform, the same on every CPU. The exponential functions of
numpy and of the C library differ in the last digit between kinds of CPU, and a box whose side lies close to half a pixel would
then be another one. Here they come from a table that `decimal` computes with correct rounding, and reading it takes no longer
than `numpy.exp`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_TO_UNIT = 1.0 / (1 << 53)
_COARSE = _FINE = 256
_NUM_STEPS = _COARSE * _FINE  # 65,536: between two aspect ratios, the side of a 1,000 pixel box changes by 0.005 pixels


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply a bijection of 64-bit words whose every output bit depends on every input bit."""
    z = values ^ (values >> _S30)
    z *= MIX_1
    z ^= z >> _S27
    z *= MIX_2
    z ^= z >> _S31
    return z


@functools.lru_cache(maxsize=1024)
def key64(*parts: int) -> np.uint64:
    """Hash a tuple of integers (any sign and size) to one 64-bit key."""
    key = 0x243F6A8885A308D3  # the first 64 bits of pi's fraction
    for part in parts:
        key = _mix64_int((key * 0x9E3779B97F4A7C15 + part) & 0xFFFFFFFFFFFFFFFF)
    return np.uint64(key)


def _mix64_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return z ^ (z >> 31)


def apart(ids: Ints, occurrences: Ints | None) -> Ints:
    """Return the keys by which samples draw if they come several times in an epoch: ids at occurrence 0, else another word."""
    if occurrences is None or not occurrences.any():
        return ids
    again = np.where(occurrences > 0, mix64(occurrences.astype(np.uint64) * _GOLDEN), np.uint64(0))
    return ids ^ again.astype(np.int64)


def to_unit(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Map 64-bit words to float64 in [0, 1): the upper 53 bits."""
    return (words >> _S11).astype(np.float64) * _TO_UNIT


@functools.lru_cache(maxsize=64)
def _counters(count: int) -> NDArray[np.uint64]:
    return np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of some samples in one epoch.

    `ids`: (n,) int64 sample ids, or the result of `apart`, or a single key for draws of a whole batch. The numbers drawn
    for a batch are kept and shared by its slices, so blocks of it cost almost nothing. Thread-safe.
    """

    seed: int
    epoch: int
    ids: Ints  # (n,)
    _part_of: tuple[Draws, slice] | None = field(default=None, repr=False, compare=False)
    _drawn: dict[tuple[int, int], NDArray[np.float64]] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the numbers that were drawn, and those of the whole batch."""
        return Draws, (self.seed, self.epoch, self.ids)

    def __getitem__(self, rows: slice | Ints) -> Draws:
        """Return the draws of some of the samples, which draw the same numbers as before."""
        return Draws(self.seed, self.epoch, self.ids[rows], (self, rows) if isinstance(rows, slice) else None)

    def words(self, operation: int, count: int) -> NDArray[np.uint64]:
        """Return (n, count) uniform 64-bit words for the operation at that position of the recipe."""
        key = key64(self.seed, self.epoch, operation)
        streams = mix64(self.ids.astype(np.uint64) * _GOLDEN ^ key)
        return mix64(streams[:, None] + _counters(count))

    def uniform(self, operation: int, count: int) -> NDArray[np.float64]:
        """Return (n, count) float64, uniform in [0, 1); read-only."""
        if self._part_of is not None:
            whole, rows = self._part_of
            return whole.uniform(operation, count)[rows]
        drawn = self._drawn.get((operation, count))
        if drawn is None:
            drawn = to_unit(self.words(operation, count))
            drawn.setflags(write=False)
            self._drawn[operation, count] = drawn
        return drawn


def log_uniform(uniform: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Return numbers between `low` and `high`, both greater than 0, for uniform ones in [0, 1)."""
    return _table(low, high).take((uniform * _NUM_STEPS).astype(np.int64))


@functools.lru_cache(maxsize=64)
def _table(low: float, high: float) -> NDArray[np.float64]:
    """Return the middle of every step, ascending."""
    with localcontext(Context(prec=28)):
        start = Decimal(low).ln()
        step = (Decimal(high).ln() - start) / _NUM_STEPS
        coarse = [float((start + step * _FINE * number).exp()) for number in range(_COARSE)]
        fine = [float((step * (number + Decimal("0.5"))).exp()) for number in range(_FINE)]
    table = np.outer(coarse, fine).ravel()
    table.flags.writeable = False  # shared by all threads
    return table
