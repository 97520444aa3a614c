"""Read columns of lists: elements at fixed places, or all of them with the lengths of the lists."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from datapipe.columns.values import ColumnValues, values_of
from datapipe.index.tables import ColumnKind, TableColumn


def item_of(column: TableColumn) -> TableColumn:
    """Return the column that the elements of a column of lists make up."""
    return TableColumn(column.name, ColumnKind.NUMBER, column.type, column.dtype, column.unit)


def flat_lists(array: pa.Array, column: TableColumn) -> tuple[ColumnValues, NDArray[np.int64]]:
    """Return the elements of all lists, and (n,) their number in each list; 0 if the list is null."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values_of(array.flatten(), item_of(column)), lengths


def padded(array: pa.Array, column: TableColumn, *, place: int, value: float) -> ColumnValues:
    """Return (n,) the element at a place of each list; `value` if the list is shorter."""
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
    """Return the places of all elements of the lists that begin at `starts`, list by list."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
