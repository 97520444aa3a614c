"""Define the operations on the values of a column, as a recipe lists them.

An operation is a frozen dataclass; the results of fitting are kept apart (`Fitted`). Operations run on blocks of rows:
floating values in float32, or float64 if the column is, ids in int32.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.errors import OptionError

PADDING, NULL, UNSEEN, FIRST = 0, 1, 2, 3  # ids of a vocabulary: its most frequent value is FIRST
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class FillMissing:
    """Replace nulls and NaN by `value`: a number, "mean" or "median" of the other values, which fitting finds.

    `indicator`: adds a feature `NAME.missing` to the matrix, 1 where there was none. A median has 12 bits of mantissa,
    which is exact for whole numbers up to 4,095.
    """

    value: float | str = 0.0
    indicator: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.value, str) and self.value not in ("mean", "median"):
            raise OptionError(f"FillMissing({self.value!r}): pass a number, 'mean' or 'median'")
        if not isinstance(self.value, str):
            _finite(self.value, "FillMissing")
        if not isinstance(self.indicator, bool):
            raise OptionError(f"FillMissing: indicator is {self.indicator!r:.30}; pass True or False")


@dataclass(frozen=True, slots=True)
class Normalize:
    """Compute (x - mean) / std, both fitted over values as they arrive here, filled ones included; a std of 0 counts as 1."""


@dataclass(frozen=True, slots=True)
class Log1p:
    """Compute log(1 + x), NaN below -1; put Clip before it if such values may come."""


@dataclass(frozen=True, slots=True)
class Clip:
    """Limit values to `min` and `max`; NaN stays."""

    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        for bound in (self.min, self.max):
            if bound is not None:
                _finite(bound, "Clip")
        if self.min is None and self.max is None:
            raise OptionError("Clip(): pass min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise OptionError(f"Clip({self.min}, {self.max}): min is above max; swap them")


@dataclass(frozen=True, slots=True)
class Bucketize:
    """Replace a value by the number of boundaries at or below it: 0 to len(boundaries). NaN is refused: fill it before."""

    boundaries: tuple[float, ...]

    def __post_init__(self) -> None:
        try:
            values = tuple(float(value) for value in self.boundaries)
        except (TypeError, ValueError, OverflowError) as exc:
            raise OptionError(f"Bucketize({self.boundaries!r:.60}): pass a list of numbers") from exc
        if not values or any(a >= b for a, b in itertools.pairwise(values)) or not all(map(math.isfinite, values)):
            raise OptionError(f"Bucketize({list(values)!r:.60}): boundaries are finite numbers in ascending order")
        object.__setattr__(self, "boundaries", values)


@dataclass(frozen=True, slots=True)
class HashBucket:
    """Hash the value modulo `size`, the same everywhere and in every version. Null is 0, values are 1 to size - 1."""

    size: int

    def __post_init__(self) -> None:
        if not _is_whole(self.size) or not 2 <= self.size < 2**31:
            raise OptionError(f"HashBucket({self.size!r:.30}): size is a whole number from 2 to 2^31 - 1")


@dataclass(frozen=True, slots=True)
class Categorify:
    """Replace a value by its place in a fitted vocabulary: 0 padding, 1 null, 2 unseen, then by count descending, then by value.

    Values that come fewer than `min_count` times are unseen, as are those beyond the `max_size` most frequent.
    """

    min_count: int = 1
    max_size: int | None = None

    def __post_init__(self) -> None:
        if not _is_whole(self.min_count) or self.min_count < 1:
            raise OptionError(f"Categorify: min_count is {self.min_count!r:.30}; it must be at least 1")
        if self.max_size is not None and (not _is_whole(self.max_size) or not 1 <= self.max_size < 2**31 - FIRST):
            raise OptionError(f"Categorify: max_size is {self.max_size!r:.30}; it must be at least 1, and below 2^31")


@dataclass(frozen=True, slots=True)
class Cast:
    """Convert the value to another dtype. Values that an integer dtype cannot hold are an error; decimals become floats."""

    dtype: str

    def __post_init__(self) -> None:
        name = str(self.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise OptionError(f"Cast({self.dtype!r:.30}): choose one of {', '.join(DTYPES)}")
        object.__setattr__(self, "dtype", name)


@dataclass(frozen=True, slots=True)
class PadList:
    """A list becomes `length` features, `NAME[0]` and so on: longer ones are cut, shorter ones, and null, end with `value`."""

    length: int
    value: float = 0

    def __post_init__(self) -> None:
        if not _is_whole(self.length) or not 1 <= self.length <= 1 << 16:
            raise OptionError(f"PadList({self.length!r:.30}): length is a whole number from 1 to 65,536")
        _finite(self.value, "PadList")


Operation = FillMissing | Normalize | Log1p | Clip | Bucketize | HashBucket | Categorify | Cast | PadList
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (FillMissing, Normalize, Log1p, Clip, Bucketize, HashBucket, Categorify, Cast, PadList)
}
_AFTER_LISTS = (Clip, Log1p, Bucketize, Cast)
MAKES_IDS = (Bucketize, HashBucket, Categorify)


def needs_fitting(operation: Operation) -> bool:
    """Return True if the operation needs statistics from fitting."""
    return bool(statistics_of(operation))


def statistics_of(operation: Operation) -> tuple[str, ...]:
    """Return the statistics that the operation needs from fitting, by their names in `Fitted`."""
    if isinstance(operation, Normalize):
        return ("mean", "std")
    if isinstance(operation, Categorify):
        return ("vocabulary",)
    return ("fill",) if isinstance(operation, FillMissing) and isinstance(operation.value, str) else ()


def checked_chain(operations: object, pattern: str) -> tuple[Operation, ...]:
    """Return the operations of a column, in order. Raises OptionError for other objects, and for meaningless orders."""
    listed = list(operations) if isinstance(operations, (list, tuple)) else [operations]
    where = f"Columns: {pattern!r}"
    for operation in listed:
        if not isinstance(operation, Operation):
            raise OptionError(f"{where} has {operation!r:.60}; pass operations such as dp.Columns.Log1p()")
    for place, operation in enumerate(listed):
        before = listed[:place]
        if any(isinstance(one, PadList) for one in before) and not isinstance(operation, _AFTER_LISTS):
            raise OptionError(f"{where}: {type(operation).__name__} after PadList, whose padding is no value; leave it out")
        if isinstance(operation, (HashBucket, Categorify, PadList)) and before:
            raise OptionError(f"{where}: {type(operation).__name__} takes the stored values; put it first")
        if any(isinstance(one, MAKES_IDS) for one in before) and not isinstance(operation, Cast):
            raise OptionError(f"{where}: {type(operation).__name__} after ids, which are not quantities; leave it out")
        if isinstance(operation, FillMissing) and any(not isinstance(one, Cast) for one in before):
            raise OptionError(f"{where}: FillMissing fills stored values; put it first")
    for kind in (FillMissing, Normalize):
        if sum(isinstance(operation, kind) for operation in listed) > 1:
            raise OptionError(f"{where} has {kind.__name__} twice; once is enough")
    return tuple(one for one in listed if isinstance(one, Operation))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object, name: str) -> None:
    if not is_finite_number(value):
        raise OptionError(f"{name}({value!r:.30}): pass a finite number")


def is_finite_number(value: object) -> bool:
    """Return True for a number, no boolean, that a float64 holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
