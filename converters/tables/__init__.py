"""Convert tables in CSV, JSON lines, Parquet, Arrow or `.npy` files to tables that train fast.

`conversion.convert_table(TableConversion(...))` does what `datapipe convert --from table` does: one pass over the source finds
the types of columns, counts rows and names bad ones; a second one writes. A source, `RowSource`, yields blocks of rows, which
are parsed to Arrow arrays. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import pyarrow as pa

A = TypeVar("A")
B = TypeVar("B")

MAX_SHOWN = 200  # characters of a bad row in errors.jsonl


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of one file: `start` to `stop` are bytes of a text, rows of a matrix, or row groups."""

    file: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class BadTableRow:
    """A row that is left out. `number`: its place in its block, bad rows included; None: the whole block."""

    number: int | None
    reason: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The rows of a block."""

    columns: dict[str, pa.Array]
    num_rows: int  # good ones
    bad: tuple[BadTableRow, ...] = ()

    @property
    def num_seen(self) -> int:
        return self.num_rows + sum(one.number is not None for one in self.bad)

    def without(self, wrong: Mapping[int, tuple[str, str]]) -> Parsed:
        """Return the rows without those at these places, which are bad by (reason, text)."""
        if not wrong:
            return self
        gone = {one.number for one in self.bad}
        numbers = [number for number in range(self.num_seen) if number not in gone]
        bad = [*self.bad, *(BadTableRow(numbers[place], *why) for place, why in wrong.items())]
        keep = pa.array([place not in wrong for place in range(self.num_rows)], pa.bool_())
        columns = {name: array.filter(keep) for name, array in self.columns.items()}
        return Parsed(columns, self.num_rows - len(wrong), tuple(sorted(bad, key=lambda one: one.number or 0)))


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

    def parse(self, block: RowBlock, types: Mapping[str, pa.DataType]) -> Parsed:
        """Return the rows of a block. `types`: the known types of columns; values may come in others."""


def in_order(function: Callable[[A], B], values: Iterable[A], *, num_threads: int) -> Iterator[B]:
    """Yield `function` of each value in order, computed a few ahead by threads. Closing it waits for those under way."""
    waiting: list[Future[B]] = []
    iterator = iter(values)
    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        try:
            waiting += [pool.submit(function, value) for value in islice(iterator, num_threads + 1)]
            while waiting:
                result = waiting.pop(0).result()
                waiting += [pool.submit(function, value) for value in islice(iterator, 1)]
                yield result
        finally:
            for future in waiting:
                future.cancel()


def plain(array: Any) -> pa.Array:
    """Return one array of the values of an array or chunked array, with dictionaries decoded."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
