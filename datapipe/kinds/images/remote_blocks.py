"""Decode threads whose blocks are made by workers on other machines: the same work as `BlockWorker`'s, done there.

Geometry, and pixel operations that leave bytes, are carried out there. What makes other numbers of them, such as a
normalisation, is carried out here, as bytes are a quarter to send. Rows that a worker calls bad are tried here too: what is a bad
sample must not depend on a machine.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import torch

from datapipe.codecs.decode import Decode
from datapipe.codecs.pillow import has_default_settings
from datapipe.core.ranges import spread
from datapipe.errors import OptionError
from datapipe.fetch.files import Files
from datapipe.index.concat import wholes
from datapipe.index.entries import Entries
from datapipe.kernel.kind import BadRow
from datapipe.kinds.images.images_cpu import MAX_CACHED, BlockReport, BlockWorker
from datapipe.kinds.images.samples import BatchSamples
from datapipe.kinds.images.served import asked, packed_recipe, report_of
from datapipe.order.draws import Draws
from datapipe.remote_workers.elsewhere import LOOKED_AT
from datapipe.transforms import Recipe
from datapipe.transforms.naming import named

if TYPE_CHECKING:
    from datapipe.remote_workers.fleet import Fleet


def looked_at(samples: BatchSamples) -> list[str]:
    """Return files of some samples, which are compared when a loader begins."""
    index, positions = samples.index, np.array(spread(len(samples), LOOKED_AT), np.int64)
    return index.look_up(index.ids(positions), samples.fields.looked_up(index)).extents.paths if len(positions) else []


def refuse_unserved(samples: BatchSamples, recipe: Recipe) -> None:
    """Raise OptionError for samples, or transforms, that workers on other machines do not make."""
    if not samples.fields.has_image:
        raise OptionError("workers: batches have no images to be decoded; leave out workers=")
    if samples.settings.cache is not None:
        raise OptionError("workers: a cache keeps decoded images here, and workers decode elsewhere; leave out cache or workers")
    if recipe.rest:
        raise OptionError(f"workers: {recipe.rest_reason}, so it runs here, sample by sample; use datapipe's transforms alone")
    if recipe.output_size(samples.index.manifest.image_size) is None:
        raise OptionError(
            "workers: images would differ in size, and they send blocks of one; end the geometry with RandomResizedCrop, "
            "CenterCrop or Resize((h, w))"
        )
    if any(part.manifest.has_row_groups for part in wholes(samples.index)):
        raise OptionError(
            "workers: rows of these data are read by a library, or together with others, on one machine; convert the data to "
            "WebDataset shards, or leave out workers="
        )
    named(recipe)


class RemoteBlockWorker(BlockWorker):
    """A `BlockWorker` that borrows a seat of a worker for each block, and does the work itself where none is there."""

    def __init__(self, recipe: Recipe, files: Files, fleet: Fleet, decode: Decode = "exact") -> None:
        super().__init__(recipe, files, decode=decode)
        num = recipe.num_in_bytes
        self._fleet, self._after, self._sent = fleet, recipe.after_pixels(num), packed_recipe(recipe, num, decode)
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def load(
        self, entries: Entries, rows: range, draws: Draws, out: torch.Tensor, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        if has_default_settings():
            own = entries.take(rows)
            is_final = out.dtype == torch.uint8
            block = out if is_final else self._memory(out.shape)
            request = asked(self._sent, block, own, draws, leave_out)
            answer = self._fleet.fill(block, request, functools.partial(report_of, num=len(rows)))
            if answer is not None:
                report, bad = answer
                if not is_final:
                    for first in range(0, len(rows), MAX_CACHED):  # while their pixels are in the core's cache
                        part = slice(first, min(first + MAX_CACHED, len(rows)))
                        self._after.run_pixels(block[part], draws[part], out[part])
                for row in bad:
                    self._try(own, row, draws, out, report)
                return report
        with self._fleet.here():
            return super().load(entries, rows, draws, out, leave_out=leave_out)

    def _try(self, entries: Entries, row: int, draws: Draws, out: torch.Tensor, report: BlockReport) -> None:
        """Make a row here that a worker calls bad."""
        own = slice(row, row + 1)
        found = super().load(entries, range(row, row + 1), draws[own], out[own])
        report.bad += [BadRow(row, reason) for _, reason in found.bad]
        if 0 in found.sizes:
            report.sizes[row] = found.sizes[0]

    def _memory(self, shape: torch.Size) -> torch.Tensor:
        """Return uint8 memory of that shape, the same at every call."""
        num = shape.numel()
        if len(self._bytes) < num:
            self._bytes = torch.empty(num, dtype=torch.uint8)
        return self._bytes[:num].view(shape)
