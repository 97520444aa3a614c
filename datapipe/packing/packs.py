"""Packs: rows of `length` tokens, made of documents or of parts of long ones. A pack is what a loader counts.

How documents become packs is arithmetic over their lengths (`stream`, `single`), or kept in a file (`plan`, `kept_plans`).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from datapipe.index.entries import by_number
from datapipe.order.draws import Ints


class Segments(NamedTuple):
    """Parts of documents that make up packs, pack by pack."""

    row: Ints  # (s,) which of the packs asked for
    shard: Ints  # (s,)
    document: Ints  # (s,) in its shard
    first: Ints  # (s,) token of the document
    num: Ints  # (s,) tokens
    total: Ints  # (s,) tokens of the whole document

    def places(self) -> Ints:
        """Return (s,) the place in its pack at which each part begins."""
        before = np.cumsum(self.num) - self.num
        return before - before[np.searchsorted(self.row, self.row)]

    def by_shard(self) -> list[tuple[int, Ints]]:
        """Return the shards in which parts lie, each with its parts."""
        return by_number(self.shard)


class Packs(Protocol):
    """The packs of a corpus. Thread-safe."""

    @property
    def kind(self) -> str:
        """The name in saved states."""

    def __len__(self) -> int: ...

    def segments(self, packs: Ints, *, seed: int | None, epoch: int) -> Segments:
        """Return what these packs are made of. `seed`: None if nothing is drawn."""

    def loss(self, packs: Ints, *, seed: int | None, epoch: int) -> Ints:
        """Return (m,) how many labels of each pack carry loss."""

    def cost(self, packs: Ints, *, seed: int | None, epoch: int) -> NDArray[np.float64]:
        """Return (m,) the sum of squares of the lengths of each pack's parts, by which the cost of attention grows."""
