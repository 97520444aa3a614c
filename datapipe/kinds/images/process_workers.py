"""Decode threads that have a worker process each: the same work as `BlockWorker`'s, done there.

What a process makes comes in memory of its own, from which the thread copies it, without Python's lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

import torch
from PIL import ImageFile

from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.index.entries import Entries
from datapipe.kernel.own_process import OwnProcess, taken_tensor, tensor_over
from datapipe.kernel.process_main import Handler, Scratch
from datapipe.kernel.processes import Launcher
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe

IMPORTS = (__name__,)  # by workers: see `launcher`


@dataclass(frozen=True, slots=True)
class _Request:
    """Samples to be loaded, the draws of each, and the memory that they are to fill."""

    entries: Entries
    draws: Draws
    leave_out: Collection[int]
    shape: tuple[int, ...]  # of the rows of pixels
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class BlockWork:
    """Makes the handler of a worker that decodes."""

    recipe: Recipe

    def __call__(self) -> Handler:
        torch.set_num_threads(1)
        worker = BlockWorker(self.recipe, LocalFiles())

        def handle(asked: _Request, scratch: Scratch) -> BlockReport:
            out = taken_tensor(scratch, asked.shape, asked.dtype)
            return worker.load(asked.entries, range(len(asked.entries)), asked.draws, out, leave_out=asked.leave_out)

        return handle


class ProcessBlockWorker(BlockWorker):
    """A `BlockWorker` with a process, which begins as soon as one can, and is done without once it has ended."""

    def __init__(self, recipe: Recipe, files: Files, begun: Launcher) -> None:
        super().__init__(recipe, files)
        self._process = OwnProcess(begun, BlockWork(recipe))

    def load(
        self, entries: Entries, rows: range, draws: Draws, out: torch.Tensor, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        if not ImageFile.LOAD_TRUNCATED_IMAGES:  # a setting of Pillow's that the process does not have
            some = slice(rows.start, rows.stop)
            own = Entries(entries.ids[some], entries.labels[some], entries.extents.take(list(rows)))
            shape = tuple(out.shape)
            answer = self._process.ask(_Request(own, draws, list(leave_out), shape, out.dtype))
            if answer is not None:
                report, memory = answer
                out.copy_(tensor_over(memory, shape, out.dtype))
                return cast("BlockReport", report)
        return super().load(entries, rows, draws, out, leave_out=leave_out)
