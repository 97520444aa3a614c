"""Gather whole batches from data in memory instead of reading it row by row: the tensors of a `TensorDataset`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset, TensorDataset

from datapipe.adapt.hub_rows import HubRows, hub_rows
from datapipe.order.plan import Picks

_NUMPYS = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
)


class TensorRows(torch.utils.data.Dataset[Any]):
    """Rows of tensors in memory; `__getitems__` returns a finished batch, as default_collate makes it of a `TensorDataset`.

    `places`: (n,) int64, the rows of the tensors that a `Subset` chose; None: all.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], places: torch.Tensor | None) -> None:
        self.tensors = tuple(tensors)
        self._places = places

    def __len__(self) -> int:
        return len(self.tensors[0]) if self._places is None else len(self._places)

    def __getitems__(self, positions: NDArray[np.int64]) -> list[torch.Tensor]:
        """Return the batch of the rows at `positions`. Raises IndexError for a row that does not exist."""
        rows = torch.from_numpy(positions)
        if self._places is not None:
            rows = self._places.index_select(0, rows)
        return [_gathered(tensor, rows) for tensor in self.tensors]

    def __getitem__(self, position: int) -> tuple[torch.Tensor, ...]:
        row = position if self._places is None else int(self._places[position])
        return tuple(tensor[row] for tensor in self.tensors)


def _gathered(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The rows of a tensor. By numpy where it can: torch's threads cost many times what the copy of a batch takes."""
    if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.dtype in _NUMPYS and not tensor.is_neg():
        return torch.from_numpy(np.take(tensor.numpy(), rows.numpy(), axis=0))  # of others it would copy all of the tensor
    return tensor.index_select(0, rows.to(tensor.device))


def rows_of(dataset: object) -> TensorRows | HubRows | None:
    """Return the rows of a `TensorDataset` or a Hugging Face dataset of numbers, or of a `Subset` of one at any depth.

    None for all else, subclasses included.
    """
    places: torch.Tensor | None = None
    while type(dataset) is Subset:
        chosen = _places_of(dataset.indices, dataset.dataset)
        if chosen is None:
            return None
        places = chosen if places is None else chosen.index_select(0, places)
        dataset = dataset.dataset
    found = hub_rows(dataset, None if places is None else places.numpy())
    if found is not None:
        return found
    if type(dataset) is not TensorDataset or not dataset.tensors:
        return None
    if not all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in dataset.tensors):
        return None
    if any(tensor.is_quantized or tensor.requires_grad for tensor in dataset.tensors):
        return None
    return TensorRows(dataset.tensors, places)


def _places_of(indices: object, dataset: Any) -> torch.Tensor | None:
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
    return torch.from_numpy(places)


def identity_collate(batch: Any) -> Any:
    """Return the batch unchanged. The `collate_fn` for batches that come finished."""
    return batch


def picked_rows(picks: Picks, seed: int) -> NDArray[np.int64]:
    """Return the positions of a batch, as the key of `TensorRows` and `HubRows`."""
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
