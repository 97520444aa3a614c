"""The rows of a batch in the making."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.index.entries import Entries, Extents
from datapipe.loader.images.dali import Fetched
from datapipe.loader.images.further_fields import Values
from datapipe.order.draws import Draws
from datapipe.order.plan import Picks


@dataclass(slots=True)
class Batch:
    """One batch in the making. Several threads may load blocks of it at once: each writes rows of its own."""

    picks: Picks
    entries: Entries
    extents: dict[str, Extents]  # of the further fields of the samples as picked
    picked: NDArray[np.int64]  # (b,) ids of the samples as picked
    draws: Draws  # of the samples as picked
    labels: NDArray[np.int64]  # (b,)
    ids: NDArray[np.int64]  # (b,) of the samples in their rows, replacements included
    good: NDArray[np.bool_]  # (b,) False for rows to be left out
    # (b, h, w, 3); or one (h, w, 3) tensor a sample if sizes differ, or the results of the user's transforms; or encoded samples
    # for DALI
    images: torch.Tensor | list[Any] | Fetched
    values: list[Values | None]  # (b,) of the further fields, by row; None until they are loaded
    num_attempts: dict[int, int] = dataclasses.field(default_factory=dict)  # attempts to replace the sample of a row
    by_hand: dict[int, NDArray[np.uint8]] = dataclasses.field(default_factory=dict)  # rows to be put into images on a device
    kept: object = None  # kept alive until the device is done with the batch
    announced: list[object] = dataclasses.field(default_factory=list)  # results of `Files.will_need`: reads in flight

    def __len__(self) -> int:
        return len(self.ids)

    def draws_of_ids(self) -> Draws:
        """Return the draws of the samples that are in the rows now."""
        if np.array_equal(self.ids, self.picked):
            return self.draws
        return Draws(self.draws.seed, self.draws.epoch, np.where(self.ids == self.picked, self.draws.ids, self.ids))

    @property
    def is_on_device(self) -> bool:
        return isinstance(self.images, torch.Tensor) and self.images.device.type != "cpu"
