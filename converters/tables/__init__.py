"""Convert tables in CSV, JSON lines, Parquet, Arrow or `.npy` files to tables that train fast.

`conversion.convert_table(TableConversion(...))` does what `datapipe convert --from table` does: one pass over the source finds
the types of columns, counts rows and names bad ones; a second one writes. A source, `RowSource`, yields blocks of rows, which
are parsed to Arrow arrays. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MAX_SHOWN = 200  # characters of a bad row in errors.jsonl
MAX_COLUMNS = 10_000  # of JSON lines, whose keys may be values: a new one in each line

Member = tuple[str, ...]  # the keys that lead to a member of an object: ("a", "b"), whose column is called `a.b`
Place = tuple[str | None, ...]  # a member, with None for the elements of a list
Kinds = Mapping[Place, str]  # of values that are not null, as `kinds` has them


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of one file: `start` to `stop` are bytes of a text, rows of a matrix, or row groups."""

    file: int
    start: int
    stop: int
    line: int = 0  # lines of a text before the block


@dataclass(frozen=True, slots=True)
class BadTableRow:
    """A row that is left out. `number`: its place in its block, bad rows included; None: the whole block."""

    number: int | None
    reason: str
    text: str = ""
    column: str = ""  # "": the row is bad as a whole
    is_relative: bool = False  # to the kinds of values in earlier rows


@dataclass(frozen=True, slots=True)
class Misfit:
    """A value that does not fit its column, as `reason` says. `is_relative`: to the kinds of values in earlier rows."""

    column: str
    reason: str
    is_relative: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """The rows of a block."""

    columns: dict[str, pa.Array]
    num_rows: int  # good ones
    bad: tuple[BadTableRow, ...] = ()
    kinds: Kinds = field(default_factory=dict)  # of the values of good rows, where rows are objects

    @property
    def num_seen(self) -> int:
        return self.num_rows + sum(one.number is not None for one in self.bad)

    def without(self, wrong: Mapping[int, tuple[Misfit, str]]) -> Parsed:
        """Return the rows without those at these places, which are bad by (misfit, text)."""
        if not wrong:
            return self
        gone = {one.number for one in self.bad}
        numbers = [number for number in range(self.num_seen) if number not in gone]
        bad = [
            *self.bad,
            *(BadTableRow(numbers[place], why.reason, text, why.column) for place, (why, text) in wrong.items()),
        ]
        keep = pa.array([place not in wrong for place in range(self.num_rows)], pa.bool_())
        columns = {name: array.filter(keep) for name, array in self.columns.items()}
        ordered = tuple(sorted(bad, key=lambda one: one.number or 0))
        return Parsed(columns, self.num_rows - len(wrong), ordered, self.kinds)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source, as it was when the source was opened."""

    name: str
    nbytes: int
    mtime_ns: int


class RowSource(Protocol):
    """A table to be converted. `blocks` belongs to one thread; `parse` may be called by several."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Return the files of the source, in order."""

    @property
    def is_text(self) -> bool:
        """Return True if values come as text, whose types are found by reading all of them."""

    def blocks(self) -> Iterator[RowBlock]:
        """Yield all rows in order, in blocks."""

    def parse(self, block: RowBlock, types: Mapping[Member, pa.DataType], kinds: Kinds) -> Parsed:
        """Return the rows of a block.

        Where rows are objects, `types` are the known types of members, and `kinds` those of the values in earlier rows: rows with
        other kinds are bad.
        """

    def lines_of(self, block: RowBlock) -> NDArray[np.int64] | None:
        """Return (rows,) the line at which each row of the block begins, bad rows included; None if the source is no text."""


def plain(array: Any) -> pa.Array:
    """Return one array of the values of an array or chunked array, with dictionaries decoded."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
