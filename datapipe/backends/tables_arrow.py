"""Arrow's arrays as numpy's, and columns of them packed into row-major matrices.

Arrow leaves anything beneath nulls, so values are never looked at where the mask says that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns.layout import Feature, Layout
from datapipe.errors import DecodeError, OptionError
from datapipe.tables import TableColumn, TableGroup

BLOCK = 8192  # rows packed at a time: a block of all columns stays in a core's cache
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a column. `data`: (n,), anything where `valid`, (n,) bool, is False; None: all are valid."""

    data: NDArray[Any]
    valid: NDArray[np.bool_] | None

    @property
    def num_nulls(self) -> int:
        return 0 if self.valid is None else int(len(self.valid) - np.count_nonzero(self.valid))


def values_of(array: pa.Array, column: TableColumn) -> Values:
    """The values of a column of numbers, in its dtype or a narrower one that the matrix widens.

    Raises DecodeError for unsigned values beyond int64, and times beyond it in the column's unit.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        array.validate(full=True)  # codes beyond the dictionary
        array = array.dictionary_decode()
        kind = array.type
    valid = _mask(array)
    if pa.types.is_boolean(kind):
        return Values(_bits(array, array.buffers()[1]).view(np.uint8), valid)
    data = _numbers(array)
    if data.dtype == np.uint64:
        signed = data.view(np.int64)
        if (signed < 0).any() and (valid is None or (signed[valid] < 0).any()):
            raise DecodeError(f"column {column.name!r} holds unsigned values beyond int64; write it as float64 or strings")
        data = signed
    unit = getattr(kind, "unit", "ms" if pa.types.is_date64(kind) else column.unit)
    if unit != column.unit and unit in _PER_SECOND:
        data = _in_unit(Values(data, valid), _PER_SECOND[column.unit] // _PER_SECOND[unit], column)
    return Values(data, valid)


def _in_unit(values: Values, factor: int, column: TableColumn) -> NDArray[np.int64]:
    data = values.data if values.valid is None else np.where(values.valid, values.data, 0)
    limit = np.iinfo(np.int64).max // factor
    if len(data) and (int(data.max()) > limit or int(data.min()) < -limit):
        raise DecodeError(f"column {column.name!r}: a time is beyond int64 in {column.unit}, the unit of other files")
    scaled: NDArray[np.int64] = data.astype(np.int64) * factor
    return scaled


def _numbers(array: pa.Array) -> NDArray[Any]:
    """The values as they lie in Arrow's memory, without a copy."""
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


def pack(
    arrays: Mapping[str, pa.Array],
    layout: Layout,
    *,
    rows: range,
    out: Sequence[NDArray[Any]],
    place: int,
    group: TableGroup,
) -> None:
    """Write `rows` of a row group's columns into rows of the matrices `out`, from `place` on.

    `out`: a (n, width) array for each matrix of the layout. Nulls become NaN in columns of floating numbers. Raises OptionError,
    naming column, file and count, for nulls among integers, and DecodeError for values that no integer holds.
    """
    columns = {column.name: values_of(arrays[column.name], column) for column in layout.columns}
    for matrix in layout.matrices:
        for feature in matrix.features:
            _check_nulls(feature, matrix.dtype, columns[feature.name], group)
            _check_range(feature, matrix.dtype, columns[feature.name], group)
    for start in range(rows.start, rows.stop, BLOCK):
        stop = min(start + BLOCK, rows.stop)
        here = slice(place + start - rows.start, place + stop - rows.start)
        for matrix, target in zip(layout.matrices, out, strict=True):
            block = target[here]
            for number, feature in enumerate(matrix.features):
                values = columns[feature.name]
                block[:, number] = values.data[start:stop]
                if values.valid is not None:
                    np.copyto(block[:, number], np.nan, where=~values.valid[start:stop])


def _check_nulls(feature: Feature, dtype: str, values: Values, group: TableGroup) -> None:
    if values.valid is not None and not dtype.startswith("float"):
        raise nulls_error(feature.name, dtype, group, values.num_nulls)


def _check_range(feature: Feature, dtype: str, values: Values, group: TableGroup) -> None:
    """Refuse integers that a narrower integer dtype, asked for by `dtypes`, does not hold."""
    wanted, data = np.dtype(dtype), values.data
    if wanted.kind not in "iu" or not len(data) or np.can_cast(data.dtype, wanted):
        return
    low, high = int(data.min()), int(data.max())
    limits = np.iinfo(wanted)
    if low < limits.min or high > limits.max:
        raise OptionError(
            f"{group}: column {feature.name!r} holds {low} to {high}, which {dtype} does not; ask for a wider dtype in dtypes="
        )


def nulls_error(name: str, dtype: str, group: TableGroup, num_nulls: int) -> OptionError:
    """What to say of nulls that a dtype has no value for."""
    known = group.file.nulls.get(name)
    count = f"{num_nulls} nulls in row group {group.number}" if known is None else f"{known} nulls"
    return OptionError(
        f"{group.file.path}: column {name!r} has {count}, and {dtype} has no value for them; fill them when the table is "
        "written, leave the column out of columns=, or ask for a floating dtype in dtypes=, where nulls are NaN"
    )
