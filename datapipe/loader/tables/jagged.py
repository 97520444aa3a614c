"""Deliver lists in torch: their elements one after the other, with lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Jagged:
    """Lists of several columns, in torch: key by key, then row by row.

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
