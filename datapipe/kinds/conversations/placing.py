"""Decode the images of conversations into units of pixels, in a thread or in its worker process.

What a process makes comes in memory of its own, from which the thread copies it, without Python's lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from datapipe.codecs.decode import SimpleJpegDecoder
from datapipe.codecs.orientation import UPRIGHT, upright, upright_size
from datapipe.codecs.pillow import has_default_settings
from datapipe.codecs.probe import probe
from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.index.entries import Extents
from datapipe.kernel.kind import Reason
from datapipe.kernel.own_process import Fill, OwnProcess
from datapipe.kernel.processes import Launcher
from datapipe.kinds.conversations.documents import Images
from datapipe.processors.processor import Processor

IMPORTS = (__name__,)  # by workers: see `launcher`


class Placer:
    """Reads, decodes and places the images of conversations. For one thread."""

    def __init__(self, processor: Processor, files: Files, *, scales: bool) -> None:
        """`scales`: whether large JPEGs are decoded at a smaller scale, twice as large as the processor resizes them to."""
        self._processor, self._files, self._scales = processor, files, scales
        self._decoder = SimpleJpegDecoder()  # the fastest of whole images
        self._scratch = torch.empty((0, *processor.unit), dtype=torch.uint8)

    def _units(self, num_units: int) -> torch.Tensor:
        """Return memory for so many units of pixels, until it is asked for again."""
        if len(self._scratch) < num_units:
            self._scratch = torch.empty((num_units * 5 // 4, *self._scratch.shape[1:]), dtype=torch.uint8)
        return self._scratch[:num_units]

    def place(self, out: torch.Tensor, extents: Extents, images: Images) -> dict[int, Reason]:
        """Write the images of conversations into their units of pixels; return the bad conversations, each with its first error.

        `out`: those of all images one after the other, (units, *unit) uint8, or (units, *value) of the model's own numbers.
        `extents`: of each conversation that of its images. Raises MissingDataError or StorageError.
        """
        bad: dict[int, Reason] = {}
        first_units = images.first_units.tolist()
        bounds = np.searchsorted(images.segment, np.arange(len(extents) + 1)).tolist()
        some = [number for number in range(len(extents)) if bounds[number] < bounds[number + 1]]
        for number, data in zip(some, self._files.read_each(extents, some), strict=True):
            if not isinstance(data, bytes):
                bad[number] = data
                continue
            begin = 0
            for image in range(bounds[number], bounds[number + 1]):
                end = begin + int(images.nbytes[image])
                try:
                    self._place_one(data[begin:end], images, image, out[first_units[image] : first_units[image + 1]])
                except (DecodeError, IntegrityError) as exc:
                    bad[number] = type(exc)(f"image {image - bounds[number] + 1}: {exc}")
                    break
                begin = end
        return bad

    def _place_one(self, data: bytes, images: Images, image: int, out: torch.Tensor) -> None:
        rows, columns = images.grid[image].tolist()
        width, height = images.size[image].tolist()
        if rows < 0:
            raise DecodeError(self._processor.refusal(width, height))
        header, orientation = probe(data), int(images.orientation[image])
        if upright_size(header.height, header.width, orientation) != (height, width):
            raise IntegrityError(f"has {header.width} x {header.height} pixels, and its index says {width} x {height}")
        wanted = self._processor.resized(rows, columns) if self._scales else None
        if wanted is None:
            pixels = self._decoder(data, header)
        else:
            least = upright_size(2 * wanted[0], 2 * wanted[1], orientation)
            pixels = self._decoder.reduced(data, header, least)
        if orientation != UPRIGHT:
            pixels = np.ascontiguousarray(upright(pixels, orientation))
        if out.dtype == torch.uint8:
            self._processor.place(pixels, rows, columns, out)
            return
        units = self._units(len(out))
        self._processor.place(pixels, rows, columns, units)
        self._processor.values(units, out)  # while they are in the core's cache


@dataclass(frozen=True, slots=True)
class PlacingWork:
    """Opens a `Placer` in a worker process."""

    processor: Processor
    scales: bool

    def __call__(self) -> Fill:
        return Placer(self.processor, LocalFiles(), scales=self.scales).place


class ProcessPlacer(Placer):
    """A `Placer` with a process, which begins as soon as one can, and is done without once it has ended."""

    def __init__(self, processor: Processor, files: Files, begun: Launcher, *, scales: bool) -> None:
        super().__init__(processor, files, scales=scales)
        self._process = OwnProcess(begun, PlacingWork(processor, scales))

    def place(self, out: torch.Tensor, extents: Extents, images: Images) -> dict[int, Reason]:
        if has_default_settings():
            is_final = out.dtype != torch.uint8
            units = self._units(len(out)) if is_final else out  # less to copy than numbers are
            bad: dict[int, Reason] | None = self._process.fill(units, extents, images)
            if bad is not None:
                if is_final:
                    self._processor.values(units, out)
                return bad
        return super().place(out, extents, images)
