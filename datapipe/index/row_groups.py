"""Describe row groups: rows of a shard that can only be read together, as their values are compressed together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

CONTAINERS = ("parquet", "hdf5")  # formats whose fields may be addressed by rows


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Some rows of a shard, and one field of them, which are read at once."""

    container: str
    path: str  # of the shard
    column: str  # the field's name in the shard
    number: int  # of the row group in the shard
    first: int  # row of the shard
    end: int

    def __len__(self) -> int:
        return self.end - self.first


class Rows(Protocol):
    """The values of a row group in memory. Thread-safe."""

    @property
    def nbytes(self) -> int:
        """The approximate size in memory."""

    def __getitem__(self, row: int, /) -> bytes:
        """Return one value; rows count from the first of the group. Raises DecodeError if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class RowGrouping:
    """The row groups of a dataset, as an order of its samples needs them."""

    starts: NDArray[np.int64]  # (g + 1,) positions at which a row group begins, and the number of samples
    nbytes: int  # of a row group, on average, as far as known
