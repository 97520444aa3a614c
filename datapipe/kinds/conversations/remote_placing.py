"""Decode threads whose images are placed by workers on other machines: the same work as `Placer`'s, done there.

Conversations of which a worker calls one bad are decoded here too: what is a bad sample must not depend on a machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from datapipe.codecs.pillow import has_default_settings
from datapipe.fetch.files import Files
from datapipe.index.entries import Extents
from datapipe.kernel.kind import Reason
from datapipe.kinds.conversations.documents import Images
from datapipe.kinds.conversations.placing import Placer
from datapipe.kinds.conversations.served import asked, packed_recipe
from datapipe.processors.processor import Processor
from datapipe.remote_workers.wire import num_bad

if TYPE_CHECKING:
    from datapipe.remote_workers.fleet import Fleet


class RemotePlacer(Placer):
    """A `Placer` that borrows a seat of a worker for each piece, and does the work itself where none is there."""

    def __init__(self, processor: Processor, files: Files, fleet: Fleet, *, scales: bool) -> None:
        super().__init__(processor, files, scales=scales)
        self._fleet, self._sent = fleet, packed_recipe(processor, scales=scales)

    def place(self, out: torch.Tensor, extents: Extents, images: Images) -> dict[int, Reason]:
        are_known = bool((images.grid[:, 0] >= 0).all())  # what the model refuses is bad, whoever looks
        if has_default_settings() and are_known and len(out):
            is_final = out.dtype != torch.uint8
            units = self._units(len(out)) if is_final else out
            some, segment = np.unique(images.segment, return_inverse=True)  # the conversations that have images
            request = asked(self._sent, extents.take(some.tolist()), images._replace(segment=segment))
            if self._fleet.fill(units, request, num_bad) == 0:
                if is_final:
                    self._processor.values(units, out)
                return {}
        with self._fleet.here():
            return super().place(out, extents, images)
