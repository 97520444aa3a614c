"""Fit a recipe: find in one pass over a table the statistics that its operations need."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from datapipe.columns.chains import Chain, Fitted, Vocabulary
from datapipe.columns.operations import Categorify, FillMissing, Normalize, Operation, needs_fitting
from datapipe.columns.values import ColumnValues, values_of
from datapipe.containers.tables.rows import GroupReader
from datapipe.core.ordered import map_in_order
from datapipe.errors import OptionError
from datapipe.index.tables import ColumnKind, TableColumn, TableIndex

_BIN_BITS = 20  # of a float32's 32 bits: sign, exponent and 11 bits of mantissa
_SHIFT = np.uint32(32 - _BIN_BITS)
_SIGN = np.uint32(0x80000000)
_UNSCALED = 400  # binary exponents up to which values are squared and summed as they are
_COMPACTED_AT = 1 << 21  # number of values waiting to be merged


# -- statistics from parts, merged in order, so that any number of threads gives the same bits --------


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of values, in float64, of values divided by 2**exponent.

    `exponent` is 0 unless squares of the values would overflow or vanish.
    """

    num: int = 0
    scaled_mean: float = 0.0
    scaled_squares: float = 0.0
    exponent: int = 0

    @classmethod
    def of(cls, values: NDArray[Any]) -> Moments:
        """Return the moments of these values."""
        if not len(values):
            return cls()
        wide = values.astype(np.float64)
        largest = float(np.abs(wide).max())
        exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
        exponent = exponent if abs(exponent) > _UNSCALED else 0
        if exponent:
            wide = np.ldexp(wide, -exponent)
        with np.errstate(invalid="ignore"):  # infinite values, which fitting refuses
            mean = float(wide.mean())
            return cls(len(values), mean, float(np.square(wide - mean).sum()), exponent)

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both together (Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm", 1979)."""
        if not self.num or not other.num:
            return self if self.num else other
        exponent = max((part.exponent for part in (self, other) if part.scaled_mean or part.scaled_squares), default=0)
        mean, squares = self._divided_by(exponent)
        other_mean, other_squares = other._divided_by(exponent)
        num, step = self.num + other.num, other_mean - mean
        together = squares + other_squares + step * step * self.num * other.num / num
        return Moments(num, mean + step * other.num / num, together, exponent)

    def repeated(self, num: int) -> Moments:
        """Return the moments of a single value that comes `num` times."""
        return Moments(num, self.scaled_mean, 0.0, self.exponent)

    def _divided_by(self, exponent: int) -> tuple[float, float]:
        """Return mean and squares of the values divided by 2**exponent."""
        shift = self.exponent - exponent
        return math.ldexp(self.scaled_mean, shift), math.ldexp(self.scaled_squares, 2 * shift)

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return math.ldexp(self.scaled_mean, self.exponent)

    @property
    def std(self) -> float:
        """The standard deviation of all values, not an estimate from a sample."""
        return math.ldexp(math.sqrt(self.scaled_squares / self.num), self.exponent) if self.num else 0.0


def histogram_of(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return (2^20,) counts of values without NaN, by their first 20 bits in order."""
    bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN) >> _SHIFT
    return np.bincount(ordered, minlength=1 << _BIN_BITS)


def median_of(histogram: NDArray[np.int64]) -> float:
    """Return the mean of the middle two of the values, of which there is one, each cut to 12 bits of mantissa.

    It is exact for whole numbers up to 4,095, else to 1 in 2,048.
    """
    ends = np.cumsum(histogram)
    num = int(ends[-1])
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


# -- the pass over the table -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """The contribution of one row group to the statistics of one column."""

    num_missing: int = 0
    stored: Moments = field(default_factory=Moments)  # of the values as they are stored
    histogram: NDArray[np.int64] | None = None  # for a median
    reached: Moments = field(default_factory=Moments)  # of the values as they reach Normalize
    different: pa.Table | None = None  # for a vocabulary


class _Whole:
    """The statistics of one column, merged part by part."""

    def __init__(self) -> None:
        self.num_missing = 0
        self.stored, self.reached = Moments(), Moments()
        self.histogram: NDArray[np.int64] | None = None  # of a column that is filled with its median
        self.counts = ValueCounts()

    def add(self, part: _Part) -> None:
        self.num_missing += part.num_missing
        self.stored = self.stored.merged(part.stored)
        self.reached = self.reached.merged(part.reached)
        if self.histogram is None:
            self.histogram = part.histogram
        elif part.histogram is not None:
            self.histogram += part.histogram
        if part.different is not None:
            self.counts.add(part.different)


def fit_columns(
    index: TableIndex,
    chains: Mapping[str, Sequence[Operation]],
    *,
    num_workers: int,
    on_rows: Callable[[int], None] = lambda num: None,
) -> dict[str, Fitted]:
    """Return the statistics that each column's operations need, from one pass over the table. `chains`: operations by column.

    The result is the same for any number of workers. Raises OptionError for a column without a value to fit, and what
    the reader raises for row groups that do not decode.
    """
    wanted = {name: tuple(operations) for name, operations in chains.items() if any(map(needs_fitting, operations))}
    columns = {name: index.column(name) for name in wanted}
    index.check_present(wanted)
    found = {name: _Whole() for name in wanted}
    if wanted:
        texts = [name for name, column in columns.items() if column.kind is ColumnKind.TEXT]
        readers: deque[GroupReader] = deque(GroupReader(list(wanted), dictionaries=texts) for _ in range(max(1, num_workers)))

        def look(number: int) -> dict[str, _Part]:
            reader = readers.pop()
            try:
                arrays = reader.read(index.group(number))
            finally:
                readers.append(reader)
            return {name: _part_of(arrays[name], columns[name], operations) for name, operations in wanted.items()}

        for number, parts in enumerate(map_in_order(look, range(index.num_groups), num_threads=max(1, num_workers))):
            for name, part in parts.items():
                found[name].add(part)
            on_rows(index.group(number).num_rows)
    return {name: _fitted(columns[name], wanted[name], found[name]) if name in wanted else Fitted() for name in chains}


def _fill_of(operations: Sequence[Operation]) -> str | None:
    return next((one.value for one in operations if isinstance(one, FillMissing) and isinstance(one.value, str)), None)


def _before_normalize(operations: Sequence[Operation]) -> tuple[Operation, ...] | None:
    """Return the operations before Normalize; None if it is absent."""
    place = next((place for place, one in enumerate(operations) if isinstance(one, Normalize)), None)
    return None if place is None else tuple(operations[:place])


def _part_of(array: pa.Array, column: TableColumn, operations: tuple[Operation, ...]) -> _Part:
    if isinstance(operations[0], Categorify):
        return _Part(different=_different(array, column))
    data = values_of(array, column).known
    before = _before_normalize(operations)
    reached = Moments()
    if before is not None:
        through = tuple(one for one in before if not isinstance(one, FillMissing))
        transformed = Chain(through).apply(ColumnValues(data, None), column)
        reached = Moments.of(transformed[~np.isnan(transformed)] if transformed.dtype.kind == "f" else transformed)
    fill = _fill_of(operations)
    return _Part(
        num_missing=len(array) - len(data),
        stored=Moments.of(data) if fill is not None else Moments(),
        histogram=histogram_of(data) if fill == "median" else None,
        reached=reached,
    )


def _different(array: pa.Array, column: TableColumn) -> pa.Table:
    """Return the distinct values of a row group and how often each comes; nulls and NaN are left out."""
    if column.kind is not ColumnKind.TEXT:
        data = values_of(array, column).known
        wide = data.astype(np.float64 if data.dtype.kind == "f" else np.int64)
        different, counts = np.unique(wide, return_counts=True)
        return ValueCounts.of(pa.array(different), counts)
    if not pa.types.is_dictionary(array.type):
        array = pc.dictionary_encode(array)
    array.validate(full=True)
    codes = array.indices.drop_null().to_numpy(zero_copy_only=False)
    counts = np.bincount(codes, minlength=len(array.dictionary))
    used = np.flatnonzero((counts > 0) & array.dictionary.is_valid().to_numpy(zero_copy_only=False))
    return ValueCounts.of(array.dictionary.take(pa.array(used)), counts[used])


def _fitted(column: TableColumn, operations: tuple[Operation, ...], whole: _Whole) -> Fitted:
    first = operations[0]
    if isinstance(first, Categorify):
        values = whole.counts.vocabulary(min_count=first.min_count, max_size=first.max_size)["value"].combine_chunks()
        return Fitted(vocabulary=Vocabulary.of(values))
    fill = _fill_of(operations)
    if fill is not None and not whole.stored.num:
        raise OptionError(f"column {column.name!r} has no value, so there is no {fill} with which to fill it; pass a number")
    value = None if fill is None else whole.stored.mean if fill == "mean" else median_of(whole.histogram)  # type: ignore[arg-type]
    if value is not None and not math.isfinite(value):
        raise OptionError(f"column {column.name!r} has infinite values, and their {fill} is {value}; pass a number to fill with")
    before = _before_normalize(operations)
    if before is None:
        return Fitted(fill=value)
    reached = whole.reached
    if whole.num_missing and any(isinstance(one, FillMissing) for one in before):
        filled = Chain(before, Fitted(fill=value)).apply(ColumnValues(np.array([np.nan]), None), column)
        reached = reached.merged(Moments.of(np.full(1, filled[0])).repeated(whole.num_missing))
    if not reached.num:
        raise OptionError(f"column {column.name!r} has no value to normalise; leave it out")
    if not (math.isfinite(reached.mean) and math.isfinite(reached.std)):
        raise OptionError(
            f"column {column.name!r} has infinite values where Normalize gets them, so their mean is {reached.mean}; "
            "put Clip before it, or before Log1p, which makes -1 infinite"
        )
    return Fitted(fill=value, mean=reached.mean, std=reached.std)
