"""Images on CPU threads: bytes of a block of samples in, finished rows of a batch out.

The bytes of a block are read, and its geometry is drawn, in one go, so that its samples share the overhead of Python and
numpy. Pixel operations process fewer images at a time. Each worker thread has its own `BlockWorker`; the files and the
recipe are shared and do not change.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.decode import Decode, Decoder, open_decoder
from datapipe.codecs.orientation import turned
from datapipe.codecs.probe import ImageHeader, probe
from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.files import Files
from datapipe.index.entries import Entries
from datapipe.kernel.kind import BadRow
from datapipe.kinds.images.cache.store import Gap
from datapipe.kinds.images.cutting import Cut, ScaledCut, UprightCut
from datapipe.kinds.images.kept_images import KeptImage, KeptImages
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.buckets import Buckets
from datapipe.transforms.execute import BlockRow, RowCut, cut_through, refuse_large, row_cuts, rows_of
from datapipe.transforms.protocols import Cuts

MAX_CACHED = 8  # images whose pixels stay in a core's cache while they are processed
MAX_HELD_NBYTES = 8 << 20  # encoded bytes above which a block is processed in parts


@dataclass(slots=True)
class BlockReport:
    """The result of loading a block, and the time spent."""

    bad: list[BadRow] = field(default_factory=list)  # rows of the block
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)  # (height, width) as stored, by row; absent for a bad header
    nbytes: int = 0  # read
    read_ns: int = 0
    decode_ns: int = 0
    augment_ns: int = 0


class EncodedSample(NamedTuple):
    """A sample whose header was checked."""

    row: int  # within the block
    data: bytes
    header: ImageHeader


Job = tuple[EncodedSample, tuple[RowCut, ...]]  # a sample and its row of every Cuts of a chain


@dataclass(slots=True)
class CachedImages:
    """The cached images of a block."""

    samples: list[EncodedSample] = field(default_factory=list)  # as the recipe's front left them
    gaps: dict[int, Gap] = field(default_factory=dict)  # by row, for the other samples

    @property
    def rows(self) -> set[int]:
        return {sample.row for sample in self.samples}


class _ExactCut:
    """A `Cut` of images that `decoder` decodes in full, or a region of them. For one thread."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def __call__(self, data: bytes, header: ImageHeader, steps: Sequence[RowCut], out: NDArray[np.uint8] | BlockRow) -> None:
        cut_through(self._decoder(data, header, steps[0].region), steps, out)


class BlockWorker:
    """Loads blocks for one thread, with its own decoder and a block of scratch memory.

    `kept`: cache of images as the recipe's front leaves them, by the samples' ids. `buckets`: of which each batch has one.
    """

    def __init__(
        self,
        recipe: Recipe,
        files: Files,
        *,
        decoder: str = "auto",
        decode: Decode = "exact",
        kept: KeptImages | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        self._recipe = recipe
        self._behind_front = recipe.split_front()[1]
        self._files = files
        self._kept = kept
        self._decoder: Decoder = open_decoder(decoder)
        self._cut: Cut = ScaledCut(self._decoder) if decode == "scaled" else _ExactCut(self._decoder)
        self._buckets = buckets
        self._turns = buckets is not None and buckets.exif
        if self._turns:
            self._cut = UprightCut(self._cut, self._decoder)
        self._scratch = torch.empty((0, 0, 0, 3), dtype=torch.uint8)
        self._rows: list[BlockRow] = []  # of the scratch memory

    def load(
        self, entries: Entries, rows: range, draws: Draws, out: torch.Tensor, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        """Load samples `rows` of `entries` into `out`.

        `draws`: of those rows, in order. `out`: (n, h, w, 3), contiguous, of the recipe's dtype and size; rows of the block that
        are in `leave_out`, or that the report calls bad, have arbitrary pixels. Raises MissingDataError or StorageError if a file
        cannot be read at all.
        """
        report = BlockReport()
        found = self._find(entries, rows, report)
        for part, samples in self._read_in_parts(entries, rows, report, leave_out=found.rows or leave_out):
            start_ns = time.perf_counter_ns()
            jobs = self._jobs(samples, found, part, draws)
            if self._buckets is not None:
                jobs = _of_shape(jobs, out.shape[1:3], report)
            report.decode_ns += time.perf_counter_ns() - start_ns
            for first in range(part.start, part.stop, MAX_CACHED):
                some = slice(first, min(first + MAX_CACHED, part.stop))
                self._load_cached(jobs, some, draws[some], out[some], report)
        return report

    def _load_cached(self, jobs: deque[Job], rows: slice, draws: Draws, out: torch.Tensor, report: BlockReport) -> None:
        """Do the jobs of these rows of the block, which come first; `draws` and `out` are those of the rows."""
        start_ns = time.perf_counter_ns()
        block, block_rows = (out, rows_of(out)) if out.dtype is torch.uint8 else self._scratch_rows(out.shape)
        while jobs and jobs[0][0].row < rows.stop:
            sample, steps = jobs.popleft()
            self._decode(sample, steps, block_rows[sample.row - rows.start], report)
        augment_ns = time.perf_counter_ns()
        self._recipe.run_pixels(block, draws, out)
        report.decode_ns += augment_ns - start_ns
        report.augment_ns += time.perf_counter_ns() - augment_ns

    def load_each(self, entries: Entries, rows: range, draws: Draws) -> tuple[list[Any], BlockReport]:
        """Load samples whose sizes may differ: a (h, w, 3) tensor each, None for a bad one.

        If the recipe ends in the user's code, each is what that returns, and what it raises is raised.
        """
        report = BlockReport()
        found = self._find(entries, rows, report)
        samples = self.read(entries, rows, report, leave_out=found.rows)
        start_ns = time.perf_counter_ns()
        images: list[Any] = [None] * len(rows)
        shares = [(recipe, sample) for recipe, share in self._shares(samples, found, range(len(rows))) for sample in share]
        for recipe, (row, data, header) in shares:
            own = draws[row : row + 1]
            chain = recipe.draw_cuts(own, np.array([(header.height, header.width)], np.int64))
            _, _, height, width = chain[-1].window[0].tolist()
            steps = [row_cuts(cuts)[0] for cuts in chain]
            try:
                refuse_large(steps)
                block = torch.empty((1, height, width, 3), dtype=torch.uint8)
                self._cut(data, header, steps, block.numpy()[0])
            except DecodeError as exc:
                report.bad.append(BadRow(row, exc))
                continue
            out = torch.empty((1, height, width, 3), dtype=self._recipe.output_dtype)
            self._recipe.run_pixels(block, own, out)
            images[row] = self._recipe.run_rest(out[0]) if self._recipe.rest else out[0]
        report.decode_ns = time.perf_counter_ns() - start_ns
        return images, report

    def read(
        self, entries: Entries, rows: range, report: BlockReport, *, leave_out: Container[int] = (), first: int = 0
    ) -> list[EncodedSample]:
        """Return the samples `rows` of `entries` whose bytes and header are good; the others go to `report`.

        `leave_out`: rows of the block to skip. `first`: the number, within the block, of the first of `rows`.
        """
        start_ns = time.perf_counter_ns()
        wanted: Sequence[int] = range(first, first + len(rows))
        if leave_out:
            wanted = [row for row in wanted if row not in leave_out]
            read = self._files.read_each(entries.extents, [rows[row - first] for row in wanted])
        else:
            read = self._files.read_each(entries.extents, rows)
        samples = []
        for row, data in zip(wanted, read, strict=True):
            try:
                if not isinstance(data, bytes):
                    raise data
                header = turned(data, probe(data)) if self._turns else probe(data)
            except (DecodeError, IntegrityError) as exc:
                report.bad.append(BadRow(row, exc))
                continue
            samples.append(EncodedSample(row, data, header))
            report.sizes[row] = (header.height, header.width)
            report.nbytes += len(data)
        report.read_ns += time.perf_counter_ns() - start_ns
        return samples

    def cut(
        self, samples: Sequence[EncodedSample], chain: list[Cuts], rows: Mapping[int, NDArray[np.uint8]], report: BlockReport
    ) -> None:
        """Decode samples and execute the geometry, each into its (h, w, 3) array of `rows`.

        `chain`: that of these samples only, in order. Samples that do not decode go to `report`.
        """
        for sample, steps in _jobs_of(samples, chain):
            self._decode(sample, steps, rows[sample.row], report)

    def _decode(
        self, sample: EncodedSample, steps: Sequence[RowCut], out: NDArray[np.uint8] | BlockRow, report: BlockReport
    ) -> None:
        row, data, header = sample
        try:
            self._cut(data, header, steps, out)
        except DecodeError as exc:
            report.bad.append(BadRow(row, exc))

    def _read_in_parts(
        self, entries: Entries, rows: range, report: BlockReport, *, leave_out: Container[int]
    ) -> Iterator[tuple[range, list[EncodedSample]]]:
        """Yield the block's rows and their samples, in one part unless that would hold too many bytes."""
        first = held = 0
        samples: list[EncodedSample] = []
        for start in range(0, len(rows), MAX_CACHED):
            stop, nbytes = min(start + MAX_CACHED, len(rows)), report.nbytes
            samples += self.read(entries, rows[start:stop], report, leave_out=leave_out, first=start)
            held += report.nbytes - nbytes
            if held > MAX_HELD_NBYTES or stop == len(rows):
                yield range(first, stop), samples
                first, held, samples = stop, 0, []

    def _jobs(self, samples: list[EncodedSample], found: CachedImages, part: range, draws: Draws) -> deque[Job]:
        """Return the jobs for the rows of a part of the block, in order."""
        jobs: list[Job] = []
        shares = self._shares(samples, found, part)
        for recipe, share in shares:
            jobs += _jobs_of(share, recipe.draw_cuts(draws_of(share, draws), sizes_of(share)))
        if len(shares) > 1:
            jobs.sort(key=lambda job: job[0].row)
        return deque(jobs)

    def _find(self, entries: Entries, rows: range, report: BlockReport) -> CachedImages:
        """Return the cached images of the block."""
        found = CachedImages()
        if self._kept is None:
            return found
        start_ns = time.perf_counter_ns()
        for row, entry in enumerate(rows):
            there = self._kept.find(entries, entry)
            if isinstance(there, KeptImage):
                found.samples.append(EncodedSample(row, there.data, there.header))
                report.sizes[row] = there.size
                report.nbytes += len(there.data)
            else:
                found.gaps[row] = there
        self._kept.store.count(hits=len(found.samples), misses=len(found.gaps))
        report.read_ns = time.perf_counter_ns() - start_ns
        return found

    def _shares(self, samples: list[EncodedSample], found: CachedImages, part: range) -> list[tuple[Recipe, list[EncodedSample]]]:
        """Return the samples of a part, in order of rows, with the recipe for each share; caches images that the cache admits."""
        if self._kept is None:
            return [(self._recipe, samples)] if samples else []
        from_the_start, behind_front = [], [sample for sample in found.samples if sample.row in part]
        for sample in samples:
            made = self._kept.make(found.gaps[sample.row], sample.data, sample.header, self._cut)
            if made is None:
                from_the_start.append(sample)
            else:
                behind_front.append(EncodedSample(sample.row, made, probe(made)))
        behind_front.sort(key=lambda sample: sample.row)
        shares = [(self._recipe, from_the_start), (self._behind_front, behind_front)]
        return [(recipe, share) for recipe, share in shares if share]

    def _scratch_rows(self, shape: torch.Size) -> tuple[torch.Tensor, list[BlockRow]]:
        """Return uint8 memory of that shape, the same at every call, and its rows or more."""
        num, *size = shape
        if self._scratch.shape[1:] != shape[1:]:
            self._scratch = torch.empty((MAX_CACHED, *size), dtype=torch.uint8)
            self._rows = rows_of(self._scratch)
        return (self._scratch if num == MAX_CACHED else self._scratch[:num]), self._rows


def _of_shape(jobs: deque[Job], shape: Sequence[int], report: BlockReport) -> deque[Job]:
    """Return the jobs whose images come out in a batch's shape; the others, of another bucket than planned, go to `report`."""
    kept: deque[Job] = deque()
    for sample, steps in jobs:
        height, width = steps[-1].window[2:]
        if (height, width) == tuple(shape):
            kept.append((sample, steps))
            continue
        header = sample.header
        reason = f"is {header.height} x {header.width} now, of another bucket than when its size was looked at"
        report.bad.append(BadRow(sample.row, DecodeError(f"{reason}: it was changed; touch its folder, or index the data again")))
    return kept


def _jobs_of(samples: Sequence[EncodedSample], chain: list[Cuts]) -> Iterator[Job]:
    return zip(samples, zip(*map(row_cuts, chain), strict=True), strict=True)


def sizes_of(samples: Sequence[EncodedSample]) -> NDArray[np.int64]:
    """Return the (n, 2) heights and widths of the stored images."""
    return np.array([(header.height, header.width) for _, _, header in samples], np.int64).reshape(-1, 2)


def draws_of(samples: Sequence[EncodedSample], draws: Draws) -> Draws:
    """Return the draws of these samples from those of their whole block."""
    return draws if len(samples) == len(draws) else draws[np.array([row for row, _, _ in samples], np.int64)]
