"""Columns of lists: their elements at fixed places, or one after the other with lengths."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from datapipe.columns.values import ColumnValues, values_of
from datapipe.index.tables import ColumnKind, TableColumn


def item_of(column: TableColumn) -> TableColumn:
    """What the elements of a column of lists are."""
    return TableColumn(column.name, ColumnKind.NUMBER, column.type, column.dtype, column.unit)


def flat_lists(array: pa.Array, column: TableColumn) -> tuple[ColumnValues, NDArray[np.int64]]:
    """The elements of all lists, and (n,) how many each has: none where the list is null."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values_of(array.flatten(), item_of(column)), lengths


def padded(array: pa.Array, column: TableColumn, *, place: int, value: float) -> ColumnValues:
    """(n,) the element at a place of each list, `value` where the list is shorter."""
    flat, lengths = flat_lists(array, column)
    starts = np.cumsum(lengths) - lengths
    dtype = flat.data.dtype if float(value).is_integer() or flat.data.dtype.kind == "f" else np.dtype(np.float32)
    there = lengths > place
    data = np.full(len(lengths), value, dtype)
    data[there] = flat.data[starts[there] + place]
    if flat.valid is None:
        return ColumnValues(data, None)
    valid = np.ones(len(lengths), np.bool_)
    valid[there] = flat.valid[starts[there] + place]
    return ColumnValues(data, valid)


def ragged_rows(lengths: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places of all elements of lists that begin at `starts`, list by list."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
