"""Samples for torch's workers, decoded and cut by datapipe, when the user's code ends the chain of transforms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch.utils.data

from datapipe.backends.images_cpu import BlockWorker
from datapipe.fetch.local import LocalFiles
from datapipe.index.concat import AnyIndex
from datapipe.index.repeats import Repeats
from datapipe.loader.images.batch_fields import IMAGE, BatchFields
from datapipe.loader.policy import located
from datapipe.order.draws import Draws, apart
from datapipe.order.plan import Picks
from datapipe.transforms import Recipe


class Key(NamedTuple):
    """A sample to read, and what its random crop depends on."""

    position: int
    seed: int
    epoch: int
    occurrence: int


def keys_of(picks: Picks, seed: int, *, repeats: Repeats | None) -> list[Key]:
    """Return the keys of a batch."""
    occurrences = np.zeros(len(picks.positions), np.int64) if picks.occurrences is None else picks.occurrences
    if repeats is not None:
        occurrences = repeats.occurrences(picks.positions, occurrences)
    pairs = zip(picks.positions.tolist(), occurrences.tolist(), strict=True)
    return [Key(position, seed, picks.after.epoch, occurrence) for position, occurrence in pairs]


class SampleDataset(torch.utils.data.Dataset[Any]):
    """(image, label) by `Key`, the image as the whole recipe makes it. Opens its files and decoder in each process."""

    def __init__(self, index: AnyIndex, recipe: Recipe) -> None:
        self._index = index
        self.recipe = recipe
        self._has_label = BatchFields.of(index, None).has_label
        self._worker: BlockWorker | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleDataset, (self._index, self.recipe)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, key: Key) -> tuple[Any, ...]:
        """Return a sample. Raises DecodeError, IntegrityError, StorageError, and what the user's transforms raise."""
        if self._worker is None:
            self._worker = BlockWorker(self.recipe, LocalFiles())
        ids = self._index.ids(np.array([key.position], np.int64))
        entries = self._index.look_up(ids, IMAGE)
        draws = Draws(key.seed, key.epoch, apart(ids, np.array([key.occurrence], np.int64)))
        (image,), report = self._worker.load_each(entries, range(1), draws)
        for bad in report.bad:
            raise located(bad.reason, self._index, int(ids[0])) from bad.reason
        return (image, int(entries.labels[0])) if self._has_label else (image,)
