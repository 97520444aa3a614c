"""Decode threads that have a worker process each: the same work as `BlockWorker`'s, done there.

What a process makes comes in memory of its own, from which the thread copies it, without Python's lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from datapipe.codecs.decode import Decode
from datapipe.codecs.pillow import has_default_settings
from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.index.entries import Entries
from datapipe.kernel.own_process import Fill, OwnProcess
from datapipe.kernel.processes import Launcher
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe

IMPORTS = (__name__,)  # by workers: see `launcher`


@dataclass(frozen=True, slots=True)
class BlockWork:
    """Opens a `BlockWorker` in a worker process."""

    recipe: Recipe
    decode: Decode

    def __call__(self) -> Fill:
        worker = BlockWorker(self.recipe, LocalFiles(), decode=self.decode)

        def load(out: torch.Tensor, entries: Entries, draws: Draws, leave_out: Collection[int]) -> BlockReport:
            return worker.load(entries, range(len(entries)), draws, out, leave_out=leave_out)

        return load


class ProcessBlockWorker(BlockWorker):
    """A `BlockWorker` with a process, which begins as soon as one can, and is done without once it has ended."""

    def __init__(self, recipe: Recipe, files: Files, begun: Launcher, decode: Decode = "exact") -> None:
        super().__init__(recipe, files, decode=decode)
        self._process = OwnProcess(begun, BlockWork(recipe, decode))

    def load(
        self, entries: Entries, rows: range, draws: Draws, out: torch.Tensor, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        if has_default_settings():
            own = entries.take(rows)
            report: BlockReport | None = self._process.fill(out, own, draws, list(leave_out))
            if report is not None:
                return report
        return super().load(entries, rows, draws, out, leave_out=leave_out)
