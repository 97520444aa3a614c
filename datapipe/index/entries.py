"""Answers of an index: where samples lie, in bytes or in row groups, their labels, and names for messages.

The values of a row group are compressed together, so its rows can only be read together.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.stored import why_absent
from datapipe.core.printable import printable
from datapipe.errors import OptionError


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

# How a value is stored: steps from the bytes of its extent to those of the value (`codecs/stored`), or the row group in which it
# is compressed together with others.
Codec = str | RowGroup


def why_bad(codec: Codec) -> str | None:
    """Return why a value cannot be read, if the index says so."""
    return why_absent(codec) if isinstance(codec, str) else None


def is_bytes(codec: Codec) -> bool:
    """Return True if a value is made of the bytes of an extent."""
    return isinstance(codec, str) and why_absent(codec) is None


@dataclass(frozen=True, slots=True)
class Extents:
    """The places of one field of some samples, bytes of a file or a row of a row group, and how it is stored there."""

    paths: list[str]  # (m,) file of each
    offset: NDArray[np.int64]  # (m,) bytes; the row of the shard if there is a row group
    nbytes: NDArray[np.int64]  # (m,), or WHOLE_FILE; with a row group the approximate size of the value, 0 if unknown
    crc32c: NDArray[np.uint32]  # (m,)
    has_crc: NDArray[np.uint8]  # (m,) 1 if crc32c is known
    one_file_each: bool  # the extents are whole files, so keeping them open is no use
    codecs: list[Codec] | None = None  # (m,) how each is stored; None: as its bytes

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
            codecs=None if self.codecs is None else [self.codecs[row] for row in rows],
        )


@dataclass(frozen=True, slots=True)
class Entries:
    """The index entries of some samples."""

    ids: NDArray[np.int64]  # (m,)
    labels: NDArray[np.int64]  # (m,) NO_LABEL if a sample has none
    extents: Extents

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: range) -> Entries:
        """Return the entries of a block of the samples."""
        some = slice(rows.start, rows.stop)
        return Entries(self.ids[some], self.labels[some], self.extents.take(list(rows)))


@dataclass(frozen=True, slots=True)
class Description:
    """One sample, described for people."""

    id: int
    path: str  # the file that holds it
    key: bytes
    source: str  # path of the file it was converted from, relative to the source; "" if it was not converted
    is_convertible: bool = True  # whether `datapipe convert` reads the data

    def __str__(self) -> str:
        text = f"{self.path}: sample {self.id}"
        if self.key != os.fsencode(self.path[-len(self.key) :]):  # otherwise a file of its own, identified by its path
            text += f" ({self.source or os.fsdecode(self.key)})"
        return printable(text)


def check_positions(positions: NDArray[np.int64], num_samples: int) -> None:
    """Raise OptionError for positions that a dataset of so many samples does not have."""
    if len(positions) and (positions.min() < 0 or positions.max() >= num_samples):
        raise OptionError(f"positions {positions.min()}..{positions.max()} reach beyond the dataset's {num_samples} samples")


def place_in(starts: NDArray[np.int64], number: int) -> tuple[int, int]:
    """Return the part that a number lies in, and the number there. `starts`: (p + 1,) where parts begin, and the end."""
    part = int(np.searchsorted(starts, number, side="right")) - 1
    return part, number - int(starts[part])


def by_number(numbers: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the different ones among `numbers`, ascending, each with its places."""
    if not len(numbers):
        return []
    first = int(numbers[0])
    if (numbers == first).all():
        return [(first, np.arange(len(numbers)))]
    return [(number, np.flatnonzero(numbers == number)) for number in sorted(set(numbers.tolist()))]
