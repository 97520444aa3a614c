"""A pack for each document, or for each part of a long one."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from datapipe.order.draws import Ints
from datapipe.packing.documents import Documents, Field, kept_documents, refuse_long
from datapipe.packing.losses import loss_of
from datapipe.packing.packs import Segments
from datapipe.packing.settings import PackSettings


class DocumentPacks:
    """A pack for each document, or for each part of a long one: "pad"; see `Packs`."""

    def __init__(self, index: Documents, settings: PackSettings, *, ends: Ints | None = None) -> None:
        """`ends`: (n,) packs before the end of each document; None: of all documents.

        Raises OptionError for a document that is too long, if that is an error.
        """
        self.index, self.settings = index, settings
        self._ends: Ints = pack_ends([(index, settings)]) if ends is None else ends

    @property
    def kind(self) -> str:
        return f"documents {self.settings.name}"

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def segments(self, packs: Ints, *, seed: int | None, epoch: int) -> Segments:
        documents = np.searchsorted(self._ends, packs, side="right")
        parts = packs - np.where(documents > 0, self._ends[documents - 1], 0)
        shard, within = self.index.locate(documents)
        total = self.index.num_tokens(documents)
        first = parts * self.settings.length
        return Segments(np.arange(len(packs)), shard, within, first, np.minimum(total - first, self.settings.length), total)

    def loss(self, packs: Ints, *, seed: int | None, epoch: int) -> Ints:
        return loss_of(self.index, self.segments(packs, seed=seed, epoch=epoch), self.settings.labels)

    def cost(self, packs: Ints, *, seed: int | None, epoch: int) -> NDArray[np.float64]:
        return self.segments(packs, seed=seed, epoch=epoch).num.astype(np.float64) ** 2

    def lengths(self, packs: Ints) -> Ints:
        """Return (m,) the number of tokens of each pack."""
        return self.segments(packs, seed=None, epoch=0).num


def pack_ends(fields: Sequence[Field]) -> Ints:
    """Return (n,) the packs before the end of each document, where documents of several fields share a pack.

    Raises OptionError for a document that is too long, if that is an error.
    """
    counts = []
    for number in range(fields[0][0].num_shards):
        of_fields = (_num_parts(index, settings, number, can_split=len(fields) == 1) for index, settings in fields)
        counts.append(functools.reduce(np.minimum, of_fields))
    return np.cumsum(np.concatenate(counts)) if counts else np.zeros(0, np.int64)


def _num_parts(index: Documents, settings: PackSettings, number: int, *, can_split: bool) -> Ints:
    """Return how many packs each document of a shard makes."""
    total = index.shard(number).num_tokens
    refuse_long(index, number, 0, total, settings, can_split=can_split)
    if settings.long == "split":
        return -(-total // settings.length)
    return kept_documents(total, settings).astype(np.int64)
