"""The keys and ids of `columns.hashing`, computed by torch. Words of 64 bits are int64 tensors, whose products wrap alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from datapipe.columns.hashing import SEED
from datapipe.order.draws import MIX_1, MIX_2


def keys_of_numbers(values: torch.Tensor) -> torch.Tensor:
    """Return (n,) keys, the same as `columns.hashing.keys_of_numbers` gives."""
    if values.is_floating_point():
        words = (values.to(torch.float64) + 0.0).view(torch.int64)
    else:
        words = values.to(torch.int64)
    return _mixed(words ^ _signed(int(SEED)))


def bucket_of(keys: torch.Tensor, size: int) -> torch.Tensor:
    """Return (n,) the keys, as unsigned numbers, modulo `size`, which is below 2^31."""
    return ((_shifted(keys, 1) % size) * 2 + (keys & 1)) % size


@dataclass(frozen=True, slots=True)
class SortedIds:
    """A vocabulary in the form that a device searches: (n,) int64 keys in ascending order, and (n,) int32 ids."""

    keys: torch.Tensor
    ids: torch.Tensor

    def find(self, keys: torch.Tensor, *, otherwise: int) -> torch.Tensor:
        """Return (n,) int32 ids; `otherwise` for keys that are not in the table."""
        if not len(self.keys):
            return torch.full(keys.shape, otherwise, dtype=torch.int32, device=keys.device)
        places = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        found = self.ids.index_select(0, places)
        return found.masked_fill_(self.keys.index_select(0, places) != keys, otherwise)


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """`order.draws.mix64`."""
    words = (words ^ _shifted(words, 30)) * _signed(int(MIX_1))
    words = (words ^ _shifted(words, 27)) * _signed(int(MIX_2))
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right, filling with zeros."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
