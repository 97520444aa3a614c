"""Fill row-major matrices from columns of Arrow arrays, or from rows of row-major datasets.

Arrow leaves anything beneath nulls, so values are never looked at where the mask says that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns.layout import Matrix, MatrixColumn, MatrixLayout
from datapipe.columns.values import ColumnValues, flat_lists, item_of, nulls_error, values_of
from datapipe.errors import DecodeError, OptionError
from datapipe.index.tables import TableGroup
from datapipe.order.draws import Ints

Write = Callable[[int, int, NDArray[Any]], None]  # rows from start to stop, and where they go

BLOCK = 32768  # rows packed at a time: few calls of numpy, which hold the lock, and a block that stays in a core's cache


def pack(
    arrays: Mapping[str, pa.Array],
    layout: MatrixLayout,
    *,
    rows: range,
    out: Sequence[NDArray[Any]],
    place: int,
    group: TableGroup,
) -> None:
    """Write `rows` of a row group's columns into rows of the matrices `out`, from `place` on.

    `out`: a (n, width) array for each matrix of the layout. Nulls become NaN in columns of floating numbers. Raises OptionError,
    naming column and file, for nulls among integers and for values that become infinite, and DecodeError for values that no
    integer holds.
    """
    bound = [[_bound(feature, matrix.dtype, arrays, group) for feature in matrix.features] for matrix in layout.matrices]
    for start in range(rows.start, rows.stop, BLOCK):
        stop = min(start + BLOCK, rows.stop)
        here = slice(place + start - rows.start, place + stop - rows.start)
        for features, target in zip(bound, out, strict=True):
            block = target[here]
            for number, values in enumerate(features):
                values(start, stop, block[:, number])


def lists_of(
    arrays: Mapping[str, pa.Array], layout: MatrixLayout, *, rows: range, group: TableGroup
) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Return elements and lengths of `rows` of each column of lists. Raises OptionError for null elements without a value."""
    found = []
    for lists in layout.lists:
        for column in lists.columns:
            values, lengths = flat_lists(arrays[column.name].slice(rows.start, len(rows)), column)
            feature = MatrixColumn(item_of(column), column.dtype)
            target = np.empty(len(values.data), lists.dtype)
            if len(target):
                _plain(feature, lists.dtype, values, group)(0, len(target), target)
            found.append((target, lengths))
    return found


def _bound(feature: MatrixColumn, dtype: str, arrays: Mapping[str, pa.Array], group: TableGroup) -> Write:
    """Return the function that writes rows of a feature into a column of a matrix."""
    array = arrays[feature.column.name]
    if feature.chain is None:
        try:
            values = values_of(array, feature.column)
        except DecodeError as exc:
            raise DecodeError(f"{group}: {exc}") from None
        return _plain(feature, dtype, values, group)
    block_of, is_float = feature.chain.bind(array, feature.column), dtype.startswith("float")

    def write(start: int, stop: int, target: NDArray[Any]) -> None:
        block = block_of(start, stop)
        if block.dtype.kind == "f" and not is_float and np.isnan(block).any():
            raise nulls_error(feature.name, dtype, group, array.null_count)
        _put(ColumnValues(block, None), target, feature, group, start)

    return write


def _plain(feature: MatrixColumn, dtype: str, values: ColumnValues, group: TableGroup) -> Write:
    _check_nulls(feature, dtype, values, group)
    _check_range(feature, dtype, values, group)
    valid = values.valid

    def write(start: int, stop: int, target: NDArray[Any]) -> None:
        _put(values[start:stop], target, feature, group, start)
        if valid is not None:
            np.copyto(target, np.nan, where=~valid[start:stop])

    return write


def _check_nulls(feature: MatrixColumn, dtype: str, values: ColumnValues, group: TableGroup) -> None:
    if values.valid is not None and not dtype.startswith("float"):
        raise nulls_error(feature.name, dtype, group, values.num_nulls)


def _check_range(feature: MatrixColumn, dtype: str, values: ColumnValues, group: TableGroup) -> None:
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


def _put(values: ColumnValues, target: NDArray[Any], feature: MatrixColumn, group: TableGroup, start: int) -> None:
    """Write values into a matrix. Raises OptionError for finite ones that become infinite. `start`: their first row."""
    if values.data.dtype == target.dtype:
        target[:] = values.data
        return
    try:
        with np.errstate(over="raise"):
            target[:] = values.data
    except FloatingPointError:
        with np.errstate(over="ignore", invalid="ignore"):
            target[:] = values.data
        is_beyond = np.isinf(target) & np.isfinite(values.data)
        if values.valid is not None:  # beneath nulls there may be anything
            is_beyond &= values.valid
        if is_beyond.any():
            row = int(np.argmax(is_beyond))
            raise OptionError(
                f"{group}: column {feature.name!r} has {values.data[row]} in row {start + row} of it, which becomes infinite in "
                f"{target.dtype.name}; ask for a wider dtype in dtypes=, or put dp.Columns.Clip into transform="
            ) from None


# -- rows of row-major datasets --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """Columns side by side: (n, k), mapped or in memory."""

    names: tuple[str, ...]
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowGather:
    """Gathers the rows of a table into the matrices of a layout. Thread-safe; one scratch block is made for each call.

    A matrix that is a whole dataset, or consecutive columns of one, is copied; others go through `pack`. `whole`: the table's
    rows as one group, for messages.
    """

    datasets: tuple[StoredMatrix, ...]
    layout: MatrixLayout
    whole: TableGroup

    def gather(self, rows: Ints, out: Sequence[NDArray[Any]], place: int) -> None:
        """Write `rows` into the matrices from `place` on. Raises what `pack` raises."""
        plain = [self._plain(matrix) for matrix in self.layout.matrices]
        for start in range(0, len(rows), BLOCK):
            chosen = rows[start : start + BLOCK]
            here = slice(place + start, place + start + len(chosen))
            gathered: dict[int, NDArray[Any]] = {}
            rest = []
            for matrix, found, target in zip(self.layout.matrices, plain, out, strict=True):
                if found is None:
                    rest.append((matrix, target[here]))
                    continue
                number, first, is_all = found
                if is_all and number not in gathered:
                    np.take(self.datasets[number].array, chosen, axis=0, out=target[here], mode="clip")
                    gathered[number] = target[here]
                else:
                    target[here] = self._rows(number, chosen, gathered)[:, first : first + matrix.width]
            if rest:
                self._pack(rest, chosen, gathered)

    def _plain(self, matrix: Matrix) -> tuple[int, int, bool] | None:
        """Return (dataset, first column, whether it is all of the dataset) of a matrix that is only copied; None for others."""
        if any(feature.chain is not None for feature in matrix.features):
            return None
        names = tuple(feature.column.name for feature in matrix.features)
        for number, dataset in enumerate(self.datasets):
            if names[0] in dataset.names:
                first = dataset.names.index(names[0])
                if dataset.names[first : first + len(names)] != names or not np.can_cast(dataset.array.dtype, matrix.dtype):
                    return None
                return number, first, names == dataset.names and dataset.array.dtype == np.dtype(matrix.dtype)
        return None

    def _rows(self, number: int, chosen: Ints, gathered: dict[int, NDArray[Any]]) -> NDArray[Any]:
        if number not in gathered:
            gathered[number] = np.take(self.datasets[number].array, chosen, axis=0, mode="clip")
        return gathered[number]

    def _pack(self, rest: Sequence[tuple[Matrix, NDArray[Any]]], chosen: Ints, gathered: dict[int, NDArray[Any]]) -> None:
        layout = MatrixLayout(tuple(matrix for matrix, _ in rest), None)
        wanted = {column.name for column in layout.columns}
        arrays: dict[str, pa.Array] = {}
        for number, dataset in enumerate(self.datasets):
            for place, name in enumerate(dataset.names):
                if name in wanted:
                    arrays[name] = pa.array(np.ascontiguousarray(self._rows(number, chosen, gathered)[:, place]))
        pack(arrays, layout, rows=range(len(chosen)), out=[target for _, target in rest], place=0, group=self.whole)
