"""The packs of several corpora, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.index.entries import by_number
from datapipe.order.draws import Ints
from datapipe.packing.packs import Packs, Segments


class JoinedPacks:
    """The packs of several corpora, one after the other; see `Packs`. What is drawn each epoch is drawn once, as of epoch 0."""

    def __init__(self, parts: Sequence[Packs], first_shards: Sequence[int]) -> None:
        """`first_shards`: number in the joined index of the first shard of each part."""
        self.parts, self._first_shards = parts, first_shards
        self._starts: Ints = np.cumsum([0, *map(len, parts)], dtype=np.int64)

    @property
    def kind(self) -> str:
        return " and ".join(part.kind for part in self.parts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def segments(self, packs: Ints, *, seed: int | None, epoch: int) -> Segments:
        found: list[Segments] = []
        for number, here in self._by_part(packs):
            segments = self.parts[number].segments(packs[here] - self._starts[number], seed=seed, epoch=0)
            found.append(segments._replace(row=here[segments.row], shard=segments.shard + self._first_shards[number]))
        joined = Segments(*(np.concatenate(columns) for columns in zip(*found, strict=True)))
        order = np.argsort(joined.row, kind="stable")
        return Segments(*(column[order] for column in joined))

    def loss(self, packs: Ints, *, seed: int | None, epoch: int) -> Ints:
        return self._of_each(packs, np.int64, lambda part, mine: part.loss(mine, seed=seed, epoch=0))

    def cost(self, packs: Ints, *, seed: int | None, epoch: int) -> NDArray[np.float64]:
        return self._of_each(packs, np.float64, lambda part, mine: part.cost(mine, seed=seed, epoch=0))

    def _of_each(self, packs: Ints, dtype: type, of: Callable[[Packs, Ints], NDArray[Any]]) -> NDArray[Any]:
        """Return (m,) what the part of each pack says of it."""
        found: NDArray[Any] = np.empty(len(packs), dtype)
        for number, here in self._by_part(packs):
            found[here] = of(self.parts[number], packs[here] - self._starts[number])
        return found

    def _by_part(self, packs: Ints) -> list[tuple[int, Ints]]:
        """Return the numbers of the parts that have these packs, each with the places of its packs."""
        return by_number(np.searchsorted(self._starts, packs, side="right") - 1)
