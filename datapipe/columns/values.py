"""Convert Arrow's arrays of numbers, and of lists of numbers, to numpy's.

Arrow leaves arbitrary data beneath nulls, so values are never read where the mask says that there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from datapipe.core.printable import counted
from datapipe.errors import DecodeError, OptionError
from datapipe.index.tables import ColumnKind, TableColumn, TableGroup

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The values of a column. `data`: (n,), arbitrary where `valid`, (n,) bool, is False; None: all are valid."""

    data: NDArray[Any]
    valid: NDArray[np.bool_] | None

    def __getitem__(self, rows: slice) -> ColumnValues:
        return ColumnValues(self.data[rows], None if self.valid is None else self.valid[rows])

    @property
    def num_nulls(self) -> int:
        return 0 if self.valid is None else int(len(self.valid) - np.count_nonzero(self.valid))

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(n,) True where there is no value, or NaN."""
        missing = np.zeros(len(self.data), np.bool_) if self.data.dtype.kind != "f" else np.isnan(self.data)
        return missing if self.valid is None else missing | ~self.valid

    @property
    def known(self) -> NDArray[Any]:
        """The values without nulls and NaN."""
        missing = self.missing
        return self.data[~missing] if missing.any() else self.data


def values_of(array: pa.Array, column: TableColumn) -> ColumnValues:
    """Return the values of a column of numbers, in its dtype or a narrower one that the matrix widens; decimals in float64.

    Raises DecodeError for unsigned values beyond int64, and times beyond it in the column's unit.
    """
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    kind = array.type
    if pa.types.is_dictionary(kind):
        array.validate(full=True)  # checks for codes beyond the dictionary
        array = array.dictionary_decode()
        kind = array.type
    valid = _mask(array)
    if pa.types.is_boolean(kind):
        return ColumnValues(_bits(array, array.buffers()[1]).view(np.uint8), valid)
    data = _numbers(array)
    if data.dtype == np.uint64:
        signed = data.view(np.int64)
        if (signed < 0).any() and (valid is None or (signed[valid] < 0).any()):
            raise DecodeError(f"column {column.name!r} holds unsigned values beyond int64; write it as float64 or strings")
        data = signed
    unit = getattr(kind, "unit", "ms" if pa.types.is_date64(kind) else column.unit)
    if unit != column.unit and unit in _PER_SECOND:
        data = _in_unit(ColumnValues(data, valid), _PER_SECOND[column.unit] // _PER_SECOND[unit], column)
    return ColumnValues(data, valid)


def _in_unit(values: ColumnValues, factor: int, column: TableColumn) -> NDArray[np.int64]:
    data = values.data if values.valid is None else np.where(values.valid, values.data, 0)
    limit = np.iinfo(np.int64).max // factor
    if len(data) and (int(data.max()) > limit or int(data.min()) < -limit):
        raise DecodeError(f"column {column.name!r}: a time is beyond int64 in {column.unit}, the unit of other files")
    scaled: NDArray[np.int64] = data.astype(np.int64) * factor
    return scaled


def _numbers(array: pa.Array) -> NDArray[Any]:
    """Return the values in Arrow's memory, without a copy."""
    kind, buffer = array.type, array.buffers()[1]
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        dtype = np.dtype(kind.to_pandas_dtype())
    else:
        dtype = np.dtype(np.int32 if kind.bit_width == 32 else np.int64)  # dates, times
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def _mask(array: pa.Array) -> NDArray[np.bool_] | None:
    if not array.null_count:
        return None
    buffer = array.buffers()[0]
    if buffer is None:  # of type null
        return np.zeros(len(array), np.bool_)
    return _bits(array, buffer)


def _bits(array: pa.Array, buffer: Any) -> NDArray[np.bool_]:
    first, shift = divmod(array.offset, 8)
    packed = np.frombuffer(buffer, np.uint8, count=-(-(shift + len(array)) // 8), offset=first)
    return np.unpackbits(packed, bitorder="little")[shift : shift + len(array)].view(np.bool_)


def nulls_error(name: str, dtype: str, group: TableGroup, num_nulls: int) -> OptionError:
    """Return the error for nulls in a column whose dtype has no value for them."""
    return OptionError(
        f"{group.file.path}: column {name!r} has {counted(num_nulls, 'null')} in row group {group.number}, and "
        f"{dtype} has no value for them; fill them (dp.Columns.FillMissing), "
        "leave the column out of columns=, or ask for a floating dtype in dtypes=, where nulls are NaN"
    )


# -- lists ------------------------------------------------------------------------------------------


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
