"""Row groups: rows of a shard that can only be read together, as their values are compressed with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

CONTAINERS = ("parquet", "hdf5")  # whose fields may be addressed by rows


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Some rows of a shard, and one field of them: what is read at once."""

    container: str
    path: str  # of the shard
    column: str  # what the shard calls the field
    number: int  # of the row group in the shard
    first: int  # row of the shard
    end: int

    def __len__(self) -> int:
        return self.end - self.first


class Rows(Protocol):
    """The values of a row group in memory. Thread-safe."""

    @property
    def nbytes(self) -> int:
        """What they take, roughly."""

    def __getitem__(self, row: int, /) -> bytes:
        """One value, rows counted from the first of the group. Raises DecodeError where there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class RowGrouping:
    """The row groups of a dataset, as an order of its samples needs them."""

    starts: NDArray[np.int64]  # (g + 1,) positions at which a row group begins, and the number of samples
    nbytes: int  # of a row group, on average, as far as anybody knows
