"""Gather whole batches from the numeric columns of a Hugging Face dataset instead of reading it row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_KIND = ("datasets.arrow_dataset", "Dataset")
_FORMATS: dict[str | None, dict[str, str]] = {  # format of a dataset -> kind of numpy's dtype -> dtype of default_collate's batch
    None: {"i": "int64", "u": "int64", "f": "float64"},
    "torch": {"i": "int64", "u": "int64", "f": "float32"},
}


@dataclass(frozen=True, slots=True)
class ChunkedColumn:
    """A column of numbers in several pieces, such as those of a mapped Arrow file, which are not copied."""

    chunks: tuple[NDArray[Any], ...]
    starts: NDArray[np.int64]  # (chunks + 1,) rows at which they begin, and the number of rows
    dtype: str  # of batches

    def take(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """Return (n,) the values at these rows, each at least 0 and below the number of rows."""
        if len(self.chunks) == 1:
            return torch.from_numpy(self.chunks[0][rows].astype(self.dtype, copy=False))
        found = np.empty(len(rows), self.dtype)
        chunk_of = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(chunk_of, kind="stable")
        edges = np.flatnonzero(np.diff(chunk_of[order], prepend=-1))
        for places in np.split(order, edges[1:]) if len(rows) else []:
            chunk = chunk_of[places[0]]
            found[places] = self.chunks[chunk][rows[places] - self.starts[chunk]]
        return torch.from_numpy(found)


class HubRows(torch.utils.data.Dataset[Any]):
    """Rows of columns of numbers; `__getitems__` returns a finished batch, as default_collate makes it of the dataset.

    `places`: (n,) int64, the rows of the columns that make up the dataset; None: all.
    """

    def __init__(self, columns: Mapping[str, ChunkedColumn], places: NDArray[np.int64] | None) -> None:
        self.columns = dict(columns)
        self._places = places

    def __len__(self) -> int:
        if self._places is not None:
            return len(self._places)
        return int(next(iter(self.columns.values())).starts[-1])

    def __getitems__(self, positions: Sequence[int] | NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """Return the batch of the rows at `positions`. Raises IndexError for a row that does not exist."""
        rows = np.asarray(positions, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a dataset of {len(self)}")
        rows = rows if self._places is None else self._places[rows]
        return {name: column.take(rows) for name, column in self.columns.items()}

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        return {name: values[0] for name, values in self.__getitems__([position]).items()}


def hub_rows(dataset: Any, places: NDArray[np.int64] | None) -> HubRows | None:
    """Return the rows of a Hugging Face dataset of numbers without nulls; None for all else.

    Its format must be Python's or torch's, without arguments. `places`: those of its rows that a `Subset` chose; None: all.
    """
    kind = type(dataset)
    if (kind.__module__, kind.__qualname__) != _KIND:  # by name: the package is not imported for an unrelated dataset
        return None
    form = dataset.format
    dtypes = _FORMATS.get(form["type"])
    if dtypes is None or form["format_kwargs"] or form["output_all_columns"] or not form["columns"]:
        return None
    table, columns = dataset.data, {}
    for name in (name for name in dataset.column_names if name in form["columns"]):
        column = _column(table.column(name), dataset.features[name], dtypes)
        if column is None:
            return None
        columns[name] = column
    if dataset._indices is not None:
        chosen = dataset._indices.column(0).to_numpy().astype(np.int64)
        places = chosen if places is None else chosen[places]
    return HubRows(columns, places)


def _column(values: Any, feature: Any, dtypes: Mapping[str, str]) -> ChunkedColumn | None:
    if type(feature).__qualname__ not in ("Value", "ClassLabel") or values.null_count:
        return None
    name = str(values.type)
    if name == "bool":
        chunks, dtype = [chunk.to_numpy(zero_copy_only=False) for chunk in values.chunks], "bool"
    elif name in ("float", "double") or (name.lstrip("u").startswith("int") and name != "uint64"):
        chunks = [chunk.to_numpy() for chunk in values.chunks]
        dtype = dtypes[chunks[0].dtype.kind] if chunks else "int64"
    else:
        return None
    if not chunks:
        return None
    starts = np.concatenate([[0], np.cumsum([len(chunk) for chunk in chunks])]).astype(np.int64)
    return ChunkedColumn(tuple(chunks), starts, dtype)
