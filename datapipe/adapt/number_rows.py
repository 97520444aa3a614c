"""Gather whole batches from numbers in memory instead of reading row by row: tensors, or a Hugging Face dataset's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset

from datapipe.order.plan import Picks, Rank

_NUMPYS = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
)
_HUB_DATASET = ("datasets.arrow_dataset", "Dataset")
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

    def __len__(self) -> int:
        return int(self.starts[-1])

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


class NumberRows(torch.utils.data.Dataset[Any]):
    """Rows of numbers; `__getitems__` returns a finished batch, as default_collate makes it of the dataset.

    `columns`: those of a `TensorDataset`, for batches that are lists, or by name, for dicts. `places`: (n,) int64, the rows of
    the columns that make up the dataset; None: all.
    """

    def __init__(
        self, columns: Sequence[torch.Tensor] | Mapping[str, ChunkedColumn], places: NDArray[np.int64] | None = None
    ) -> None:
        self.columns = columns
        self._places = places

    def __len__(self) -> int:
        if self._places is not None:
            return len(self._places)
        return len(next(iter(self.columns.values())) if isinstance(self.columns, Mapping) else self.columns[0])

    def __getitems__(self, positions: Sequence[int] | NDArray[np.int64]) -> list[torch.Tensor] | dict[str, torch.Tensor]:
        """Return the batch of the rows at `positions`. Raises IndexError for a row that does not exist."""
        rows = np.asarray(positions, np.int64)
        is_named = isinstance(self.columns, Mapping)
        if is_named and len(rows) and (rows.min() < 0 or rows.max() >= len(self)):  # tensors count from the end, these do not
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a dataset of {len(self)}")
        rows = rows if self._places is None else self._places[rows]
        if isinstance(self.columns, Mapping):
            return {name: column.take(rows) for name, column in self.columns.items()}
        return [_gathered(tensor, rows) for tensor in self.columns]

    def __getitem__(self, position: int) -> Any:
        batch = self.__getitems__([position])
        return {name: batch[name][0] for name in batch} if isinstance(batch, dict) else tuple(values[0] for values in batch)


def _gathered(tensor: torch.Tensor, rows: NDArray[np.int64]) -> torch.Tensor:
    """The rows of a tensor. By numpy where it can: torch's threads cost many times what the copy of a batch takes."""
    if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.dtype in _NUMPYS and not tensor.is_neg():
        return torch.from_numpy(np.take(tensor.numpy(), rows, axis=0))  # of others it would copy all of the tensor
    return tensor.index_select(0, torch.from_numpy(rows).to(tensor.device))


def rows_of(dataset: object) -> NumberRows | None:
    """Return the rows of a `TensorDataset` or a Hugging Face dataset of numbers, or of a `Subset` of one at any depth.

    None for all else, subclasses included.
    """
    places: NDArray[np.int64] | None = None
    while type(dataset) is Subset:
        chosen = places_of_subset(dataset.indices, dataset.dataset)
        if chosen is None:
            return None
        places = chosen if places is None else chosen[places]
        dataset = dataset.dataset
    if (type(dataset).__module__, type(dataset).__qualname__) == _HUB_DATASET:  # by name: nothing else imports the package
        return _rows_of_hub(dataset, places)
    if type(dataset) is not TensorDataset or not dataset.tensors:
        return None
    if not all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in dataset.tensors):
        return None
    if any(tensor.is_quantized or tensor.requires_grad for tensor in dataset.tensors):
        return None
    return NumberRows(dataset.tensors, places)


def places_of_subset(indices: object, dataset: Any) -> NDArray[np.int64] | None:
    """Return a subset's indices, counted from the start; None if they are not a plain list, or lead out of the dataset."""
    try:
        places = np.asarray(indices)
    except (TypeError, ValueError):
        return None
    if places.ndim != 1 or (places.dtype.kind not in "iu" and len(places)):
        return None
    places = places.astype(np.int64)
    places = np.where(places < 0, places + len(dataset), places)
    if len(places) and (places.min() < 0 or places.max() >= len(dataset)):
        return None
    return places


def _rows_of_hub(dataset: Any, places: NDArray[np.int64] | None) -> NumberRows | None:
    """Return the rows of a Hugging Face dataset of numbers without nulls, in Python's or torch's format without arguments."""
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
    return NumberRows(columns, places)


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


def identity_collate(batch: Any) -> Any:
    """Return the batch unchanged. The `collate_fn` for batches that come finished."""
    return batch


def picked_rows(picks: Picks, seed: int, rank: Rank) -> NDArray[np.int64]:
    """Return the positions of a batch, as the key of `NumberRows`."""
    return picks.positions


# Arguments that replace those of torch's loader: gathering is cheaper than receiving the result from a worker.
WHOLE_BATCHES = {
    "collate_fn": identity_collate,
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
    "worker_init_fn": None,
}
