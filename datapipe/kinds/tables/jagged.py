"""Deliver lists in torch: their elements one after the other, with lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.columns.layout import MatrixLayout


@dataclass(frozen=True)
class Jagged:
    """Lists of several columns, in torch: key by key, then row by row.

    >>> data = datapipe.Table("clicks", columns={"dense": ["I*"], "tags": ["tags"]}, label="label", lists="jagged")
    >>> for x, label in datapipe.DataLoader(data, 4096):
    ...     tags = x["tags"]                        # tags.values, tags.lengths, tags.offsets

    `values`: (total,); `lengths`: (keys * b,) int64; `offsets`: (keys * b + 1,) int64, where the list of key k and row r is
    `values[offsets[k * b + r]:offsets[k * b + r + 1]]`.
    """

    values: torch.Tensor
    lengths: torch.Tensor
    offsets: torch.Tensor
    keys: tuple[str, ...]

    @property
    def num_rows(self) -> int:
        """The number of rows of the batch."""
        return len(self.lengths) // len(self.keys)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, key: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (values, lengths) of one key: (n,) and (b,). Raises KeyError."""
        if key not in self.keys:
            raise KeyError(key)
        first = self.keys.index(key) * self.num_rows
        end = first + self.num_rows
        return self.values[int(self.offsets[first]) : int(self.offsets[end])], self.lengths[first:end]

    def to_kjt(self) -> Any:
        """Return the same lists as TorchRec's `KeyedJaggedTensor`. Raises ImportError if TorchRec is not installed."""
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        return KeyedJaggedTensor(keys=list(self.keys), values=self.values, lengths=self.lengths, offsets=self.offsets)


def jagged_of(
    layout: MatrixLayout, lists: Mapping[int, list[tuple[NDArray[Any], NDArray[np.int64]]]], good: NDArray[np.bool_]
) -> dict[str, Jagged]:
    """Return the groups of lists of a batch, by name.

    `lists`: by first row, the elements and the lengths of each column. `good`: (b,) the rows to keep.
    """
    found, place = {}, 0
    parts = [part for _, part in sorted(lists.items())]
    for group in layout.lists:
        columns = range(place, place + len(group.columns))
        place = columns.stop
        lengths = np.concatenate([part[number][1] for number in columns for part in parts])
        if not good.all():
            lengths = lengths.reshape(len(columns), -1)[:, good].ravel()  # the others' lists are empty
        values = np.concatenate([part[number][0] for number in columns for part in parts])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        keys = tuple(column.name for column in group.columns)
        found[group.name] = Jagged(torch.from_numpy(values), torch.from_numpy(lengths), torch.from_numpy(offsets), keys)
    return found
