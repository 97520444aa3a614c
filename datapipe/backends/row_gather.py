"""Gather rows of row-major datasets into the matrices of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.backends.tables_arrow import BLOCK, pack
from datapipe.columns.layout import Matrix, MatrixLayout
from datapipe.index.tables import TableGroup

Ints = NDArray[np.int64]


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
