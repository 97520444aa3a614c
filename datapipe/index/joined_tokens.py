"""Several corpora as one: their documents one after the other, and their packs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import OptionError
from datapipe.index.concat import concatenated
from datapipe.index.entries import by_number, place_in
from datapipe.index.packs import Ints, Packs, Segments
from datapipe.index.tokens import TokenIndex, TokenShard


def joined_index(indexes: Sequence[TokenIndex]) -> TokenIndex:
    """Return one index of several corpora. Raises OptionError if they were made by different tokenizers, as far as is known."""
    first = indexes[0].facts
    for index in indexes[1:]:
        for name in ("tokenizer_sha256", "vocab_size"):
            ours, theirs = getattr(first, name), getattr(index.facts, name)
            if ours and theirs and ours != theirs:
                what = name.replace("_", " ")
                raise OptionError(f"{indexes[0].where} and {index.where}: have different tokenizers ({what}); convert one again")
    starts = np.cumsum([0, *(index.num_shards for index in indexes)])

    def open_shard(number: int) -> TokenShard:
        part, there = place_in(starts, number)
        return indexes[part].shard(there)

    samples = [index.samples for index in indexes if index.samples is not None]
    digest = hashlib.sha256(" ".join(index.fingerprint for index in indexes).encode()).hexdigest()
    return TokenIndex(
        ", ".join(index.where for index in indexes),
        [int(num) for index in indexes for num in np.diff(index.starts)],
        open_shard,
        fingerprint=digest[:16],
        facts=replace(first, vocab_size=max((index.facts.vocab_size or 0 for index in indexes), default=0) or None),
        samples=concatenated(samples) if samples else None,
    )


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
