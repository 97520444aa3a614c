"""Compute statistics of a column from parts, merged in order, so that any number of threads gives the same bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_BIN_BITS = 20  # of a float32's 32 bits: sign, exponent and 11 bits of mantissa
_SHIFT = np.uint32(32 - _BIN_BITS)
_SIGN = np.uint32(0x80000000)
_COMPACTED_AT = 1 << 21  # number of values waiting to be merged


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of values, in float64."""

    num: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: NDArray[Any]) -> Moments:
        """Return the moments of these values."""
        if not len(values):
            return cls()
        wide = values.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinite values, which fitting refuses
            mean = float(wide.mean())
            return cls(len(values), mean, float(np.square(wide - mean).sum()))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both together (Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm", 1979)."""
        num = self.num + other.num
        if not self.num or not other.num:
            return self if self.num else other
        step = other.mean - self.mean
        squares = self.squares + other.squares + step * step * self.num * other.num / num
        return Moments(num, self.mean + step * other.num / num, squares)

    @property
    def std(self) -> float:
        """The standard deviation of all values, not an estimate from a sample."""
        return math.sqrt(self.squares / self.num) if self.num else 0.0


class Histogram:
    """Counts of values by their first 20 bits in order, for a median. Exact for whole numbers up to 4,095, else to 1 in 2,048."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(1 << _BIN_BITS, np.int64)

    def add(self, other: NDArray[np.int64]) -> None:
        """Add the counts of a part."""
        self.counts += other

    @staticmethod
    def counts_of(values: NDArray[Any]) -> NDArray[np.int64]:
        """Return (2^20,) counts of values without NaN."""
        bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)
        ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN) >> _SHIFT
        return np.bincount(ordered, minlength=1 << _BIN_BITS)

    def median(self) -> float:
        """Return the mean of the middle two values, each cut to 12 bits of mantissa. Raises ValueError if there are none."""
        ends = np.cumsum(self.counts)
        num = int(ends[-1])
        if not num:
            raise ValueError("no values")
        bins = np.searchsorted(ends, [(num - 1) // 2, num // 2], side="right")
        return float(np.mean([_value_of(int(one)) for one in bins]))


def _value_of(number: int) -> float:
    """Return the value nearest to zero of a bin."""
    word = np.uint32(number) << _SHIFT
    bits = word ^ _SIGN if word & _SIGN else ~(word | np.uint32((1 << int(_SHIFT)) - 1))
    return float(np.array(bits, np.uint32).view(np.float32))


@dataclass(slots=True)
class ValueCounts:
    """How often each value comes; merged in steps, so that memory grows with the distinct values only."""

    parts: list[pa.Table] = field(default_factory=list)
    num_waiting: int = 0

    @staticmethod
    def of(values: pa.Array, counts: NDArray[np.int64]) -> pa.Table:
        """Return a part: distinct values and how often each comes. Texts are held with 64-bit offsets."""
        if pa.types.is_string(values.type):
            values = values.cast(pa.large_string())
        elif pa.types.is_binary(values.type):
            values = values.cast(pa.large_binary())
        return pa.table({"value": values, "count": counts})

    def add(self, part: pa.Table) -> None:
        """Add a part."""
        self.parts.append(part)
        self.num_waiting += part.num_rows
        if self.num_waiting > _COMPACTED_AT + 2 * self.parts[0].num_rows:
            self.compact()

    def compact(self) -> pa.Table:
        """Return all values, each once, with their counts."""
        if len(self.parts) > 1:
            together = pa.concat_tables(self.parts).group_by("value", use_threads=False).aggregate([("count", "sum")])
            self.parts = [together.select(["value", "count_sum"]).rename_columns(["value", "count"])]
        self.num_waiting = self.parts[0].num_rows if self.parts else 0
        return self.parts[0] if self.parts else pa.table({"value": pa.array([], pa.int64()), "count": pa.array([], pa.int64())})

    def vocabulary(self, *, min_count: int, max_size: int | None) -> pa.Table:
        """Return the values of at least `min_count`, by count descending, then by value; at most `max_size` of them."""
        table = self.compact()
        table = table.filter(pc.greater_equal(table["count"], min_count))
        table = table.take(pc.sort_indices(table, sort_keys=[("count", "descending"), ("value", "ascending")]))
        return table if max_size is None else table.slice(0, max_size)
