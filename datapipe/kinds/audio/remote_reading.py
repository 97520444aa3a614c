"""Decode threads whose sound is decoded by workers on other machines: the same work as `SoundReader`'s, done there.

Rows of which a worker calls one bad are read here too: what is a bad sample must not depend on a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from datapipe.fetch.files import Files
from datapipe.kernel.kind import Reason
from datapipe.kinds.audio.reading import SoundReader, Stretch
from datapipe.kinds.audio.served import asked
from datapipe.remote_workers.wire import num_bad

if TYPE_CHECKING:
    from datapipe.remote_workers.fleet import Fleet


class RemoteSoundReader(SoundReader):
    """A `SoundReader` that borrows a seat of a worker for each block, and does the work itself where none is there."""

    def __init__(self, rate: int, files: Files, fleet: Fleet) -> None:
        super().__init__(rate, files)
        self._fleet = fleet

    def read(self, out: torch.Tensor, stretches: Sequence[Stretch]) -> dict[int, Reason]:
        if self._fleet.fill(out, asked(self._rate, out, stretches), num_bad) == 0:
            return {}
        with self._fleet.here():
            return super().read(out, stretches)
