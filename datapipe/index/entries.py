"""Answers of an index: where samples lie, in bytes or in row groups, their labels, and names for messages.

The values of a row group are compressed together, so its rows can only be read together.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from datapipe.core.printable import printable
from datapipe.errors import OptionError

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


WHOLE_FILE = -1  # in place of a number of bytes


@dataclass(frozen=True, slots=True)
class Extents:
    """Where one field of some samples lies: bytes of a file, or a row of a row group."""

    paths: list[str]  # (m,) file of each
    offset: NDArray[np.int64]  # (m,) bytes; the row of the shard if there is a row group
    nbytes: NDArray[np.int64]  # (m,), or WHOLE_FILE; with a row group the approximate size of the value, 0 if unknown
    crc32c: NDArray[np.uint32]  # (m,)
    has_crc: NDArray[np.uint8]  # (m,) 1 if crc32c is known
    one_file_each: bool  # the extents are whole files, so keeping them open is no use
    prefixes: list[bytes] | None = None  # (m,) bytes that belong before those of each; None: none
    row_groups: list[RowGroup | None] | None = None  # (m,) the row group to read for each; None: bytes

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: list[int]) -> Extents:
        """Return the extents of some of the samples."""
        return Extents(
            paths=[self.paths[row] for row in rows],
            offset=self.offset[rows],
            nbytes=self.nbytes[rows],
            crc32c=self.crc32c[rows],
            has_crc=self.has_crc[rows],
            one_file_each=self.one_file_each,
            prefixes=None if self.prefixes is None else [self.prefixes[row] for row in rows],
            row_groups=None if self.row_groups is None else [self.row_groups[row] for row in rows],
        )


@dataclass(frozen=True, slots=True)
class Entries:
    """The index entries of some samples."""

    ids: NDArray[np.int64]  # (m,)
    labels: NDArray[np.int64]  # (m,) -1 if a sample has none
    extents: Extents

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Description:
    """One sample, described for people."""

    id: int
    path: str  # the file that holds it
    key: bytes
    source: str  # path of the file it was converted from, relative to the source; "" if it was not converted

    def __str__(self) -> str:
        text = f"{self.path}: sample {self.id}"
        if self.key != os.fsencode(self.path[-len(self.key) :]):  # otherwise a file of its own, identified by its path
            text += f" ({self.source or os.fsdecode(self.key)})"
        return printable(text)


def check_positions(positions: NDArray[np.int64], num_samples: int) -> None:
    """Raise OptionError for positions that a dataset of so many samples does not have."""
    if len(positions) and (positions.min() < 0 or positions.max() >= num_samples):
        raise OptionError(f"positions {positions.min()}..{positions.max()} reach beyond the dataset's {num_samples} samples")
