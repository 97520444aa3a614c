"""Gather whole batches from numbers in memory instead of reading row by row: tensors, or a Hugging Face dataset's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset, default_collate

from datapipe.adapt.hub_columns import Column, HubSource, ListColumn, UnevenRows, columns_of, is_of_hub, rows_selected, state_of
from datapipe.adapt.loaders import Collation, collate_of_transformers
from datapipe.core.readahead import announce
from datapipe.order.plan import Picks, Rank

_NUMPYS = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
)


class NumberRows(torch.utils.data.Dataset[Any]):
    """Rows of numbers; `__getitems__` returns a finished batch, as default_collate makes it of the dataset.

    `columns`: those of a `TensorDataset`, for batches that are lists, or by name, for dicts. `places`: (n,) int64, the rows of
    the columns that make up the dataset; None: all. `source`: what makes a batch where the columns do not say what it is.
    """

    def __init__(
        self,
        columns: Sequence[torch.Tensor] | Mapping[str, Column],
        places: NDArray[np.int64] | None = None,
        source: HubSource | None = None,
    ) -> None:
        self.columns = columns
        self._places = places
        self._source = source

    def __len__(self) -> int:
        if self._places is not None:
            return len(self._places)
        return len(next(iter(self.columns.values())) if isinstance(self.columns, Mapping) else self.columns[0])

    def __getitems__(self, positions: Sequence[int] | NDArray[np.int64]) -> list[torch.Tensor] | dict[str, Any]:
        """Return the batch of the rows at `positions`. Raises IndexError for a row that does not exist."""
        rows = np.asarray(positions, np.int64)
        is_named = isinstance(self.columns, Mapping)
        if is_named and len(rows) and (rows.min() < 0 or rows.max() >= len(self)):  # tensors count from the end, these do not
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a dataset of {len(self)}")
        if self._source is not None and not self._source.is_unchanged():
            return self._source.plain(rows.tolist())  # type: ignore[no-any-return]
        picked = rows if self._places is None else self._places[rows]
        if not isinstance(self.columns, Mapping):
            return [_gathered(tensor, picked) for tensor in self.columns]
        try:
            return {name: column.take(picked) for name, column in self.columns.items()}
        except UnevenRows:
            if self._source is None:
                raise
            return self._source.plain(rows.tolist())  # type: ignore[no-any-return]

    def announce(self, positions: Sequence[int] | NDArray[np.int64]) -> None:
        """Have the operating system read what a batch that comes later needs of mapped lists."""
        rows = np.asarray(positions, np.int64)
        if (
            self._source is None
            or not self._source.inner.cache_files
            or not len(rows)
            or rows.min() < 0
            or rows.max() >= len(self)
        ):
            return
        picked = rows if self._places is None else self._places[rows]
        for column in self.columns.values() if isinstance(self.columns, Mapping) else ():
            if isinstance(column, ListColumn):
                announce(column.spans(picked))

    def __getitem__(self, position: int) -> Any:
        batch = self.__getitems__([position])
        return {name: batch[name][0] for name in batch} if isinstance(batch, dict) else tuple(values[0] for values in batch)


def _gathered(tensor: torch.Tensor, rows: NDArray[np.int64]) -> torch.Tensor:
    """The rows of a tensor. By numpy where it can: torch's threads cost many times what the copy of a batch takes."""
    if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.dtype in _NUMPYS and not tensor.is_neg():
        return torch.from_numpy(np.take(tensor.numpy(), rows, axis=0))  # of others it would copy all of the tensor
    return tensor.index_select(0, torch.from_numpy(rows).to(tensor.device))


def rows_of(dataset: object, collation: Collation = "torch") -> NumberRows | None:
    """Return the rows of a `TensorDataset` or a Hugging Face dataset of numbers, or of a `Subset` of one at any depth.

    None for all else, subclasses included. `collation`: whose function makes batches of samples.
    """
    whole, taken_apart = dataset, inside_of_subsets(dataset)
    if taken_apart is None:
        return None
    dataset, places = taken_apart
    if is_of_hub(dataset):
        return _rows_of_hub(whole, dataset, places, collation)
    if collation != "torch" or type(dataset) is not TensorDataset or not dataset.tensors:
        return None
    if not all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in dataset.tensors):
        return None
    if any(tensor.is_quantized or tensor.requires_grad for tensor in dataset.tensors):
        return None
    return NumberRows(dataset.tensors, places)


def inside_of_subsets(dataset: Any, *, counts_back: bool = True) -> tuple[Any, NDArray[np.int64] | None] | None:
    """Return the dataset inside of `Subset`s, and its indices (n,) that make up the outermost; None for these: all of them.

    None if a `Subset` selects by anything but places in what is inside. `counts_back`: whether these may be negative.
    """
    places: NDArray[np.int64] | None = None
    while type(dataset) is Subset:
        chosen = _places_of_subset(dataset.indices, dataset.dataset)
        if chosen is None or not (counts_back or min(dataset.indices, default=0) >= 0):
            return None
        places = chosen if places is None else chosen[places]
        dataset = dataset.dataset
    return dataset, places


def _places_of_subset(indices: object, dataset: Any) -> NDArray[np.int64] | None:
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


def _rows_of_hub(dataset: Any, inner: Any, places: NDArray[np.int64] | None, collation: Collation) -> NumberRows | None:
    """Return the rows of a Hugging Face dataset `inner` of numbers and lists of numbers; `places` chooses some of them."""
    columns = columns_of(inner, collation)
    if columns is None:
        return None
    chosen = rows_selected(inner)
    if chosen is not None:
        places = chosen if places is None else chosen[places]
    collate: Any = default_collate if collation == "torch" else collate_of_transformers()
    return NumberRows(columns, places, HubSource(dataset, collate, inner, state_of(inner)))


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
