"""Decode threads that have a worker process each: the same work as `BlockWorker`'s and `FetchWorker`'s, done there.

Pixels are written into the memory of the batch, which is shared; encoded bytes for DALI come in memory of the worker's.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.probe import ImageHeader
from datapipe.core.printable import get_logger
from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.index.entries import Entries
from datapipe.kernel.process_main import Handler
from datapipe.kernel.processes import Launcher, WorkerEndedError, WorkerProcess, launcher, wanted
from datapipe.kernel.shared_slabs import Slab, slab_of
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.kinds.images.dali_stage import Fetched, FetchWorker
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker, EncodedSample
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.protocols import Cuts

_IMPORTS = (__name__,)
_PATIENCE_S = 20.0

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is asked for: some samples, with their draws."""

    entries: Entries
    seed: int
    epoch: int
    keys: NDArray[np.int64]  # with which samples draw
    leave_out: Collection[int]

    @classmethod
    def of(cls, entries: Entries, rows: range, draws: Draws, leave_out: Collection[int]) -> _Rows:
        some = slice(rows.start, rows.stop)
        own = Entries(entries.ids[some], entries.labels[some], entries.extents.take(list(rows)))
        return cls(own, draws.seed, draws.epoch, draws.ids, list(leave_out))

    @property
    def draws(self) -> Draws:
        return Draws(self.seed, self.epoch, self.keys)


class _Pixels(NamedTuple):
    """Rows to be written into shared memory."""

    rows: _Rows
    slab: int  # its number
    slab_nbytes: int
    offset: int  # bytes
    shape: tuple[int, ...]
    dtype: torch.dtype


class _Encoded(NamedTuple):
    """What a fetched block holds for DALI, besides the bytes."""

    report: BlockReport
    rows: list[int]
    ends: list[int]  # of each one's bytes
    headers: list[ImageHeader]
    cuts: Cuts | None
    by_hand: dict[int, NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class BlockWork:
    """Makes the handler of a worker that decodes."""

    recipe: Recipe

    def __call__(self) -> Handler:
        torch.set_num_threads(1)
        worker = BlockWorker(self.recipe, LocalFiles())

        def handle(asked: _Pixels, mapped: Callable[[int, int], memoryview]) -> tuple[BlockReport, Sequence[int]]:
            memory = torch.frombuffer(mapped(asked.slab, asked.slab_nbytes), dtype=torch.uint8)
            num_bytes = int(np.prod(asked.shape)) * asked.dtype.itemsize
            out = memory[asked.offset : asked.offset + num_bytes].view(asked.dtype).view(asked.shape)
            rows = asked.rows
            return worker.load(rows.entries, range(len(rows.entries)), rows.draws, out, leave_out=rows.leave_out), ()

        return handle


@dataclass(frozen=True, slots=True)
class FetchWork:
    """Makes the handler of a worker that fetches for DALI."""

    recipe: Recipe
    geometry: Recipe
    graph: GraphOptions

    def __call__(self) -> Handler:
        torch.set_num_threads(1)
        worker = FetchWorker(BlockWorker(self.recipe, LocalFiles()), self.geometry, self.graph)

        def handle(rows: _Rows, mapped: Callable[[int, int], memoryview]) -> tuple[_Encoded, Sequence[int]]:
            block = Fetched(len(rows.entries), self.graph.height, self.graph.width)
            report = worker.load(rows.entries, range(len(rows.entries)), rows.draws, block, 0, leave_out=rows.leave_out)
            given = block.rows_given()
            samples = [sample for sample in block.samples if sample is not None]
            ends = np.cumsum([len(sample.data) for sample in samples], dtype=np.int64).tolist()
            made = []
            if samples:
                made.append(os.memfd_create("datapipe-encoded", os.MFD_CLOEXEC))
                with open(made[0], "wb", closefd=False) as file:
                    file.writelines(sample.data for sample in samples)
            cuts = block.cuts[np.array(given, np.int64)] if given else None
            return _Encoded(report, given, ends, [sample.header for sample in samples], cuts, block.by_hand), made

        return handle


class _Process:
    """The process of one thread, which begins as soon as one can, and is done without once it has ended."""

    def __init__(self, work: BlockWork | FetchWork, begun: Launcher) -> None:
        self._work = work
        self._launcher: Launcher | None = begun
        self._process: WorkerProcess | None = None
        self._owner = os.getpid()

    def ask(self, request: Any, slabs: Sequence[Slab] = ()) -> tuple[Any, list[int]] | None:
        """Return the process's answer; None: it has none, and the thread is to do the work itself."""
        if self._launcher is None or os.getpid() != self._owner:  # forked children do without
            return None
        try:
            if self._process is None:
                if not self._launcher.is_ready:
                    return None
                self._process = self._begin(self._launcher)
            return self._process.ask(request, slabs)
        except WorkerEndedError as exc:
            logger.warning("%s", exc)
            self._process = self._launcher = None
            return None

    def _begin(self, begun: Launcher) -> WorkerProcess:
        try:
            return WorkerProcess(begun, self._work)
        except WorkerEndedError:
            raise
        except Exception as exc:  # something that the worker could not import, or pickle does not take
            raise WorkerEndedError(f"a worker process could not begin ({exc}); a thread does its work") from exc


class ProcessBlockWorker(BlockWorker):
    """A `BlockWorker` for memory that is shared."""

    def __init__(self, recipe: Recipe, files: Files, begun: Launcher) -> None:
        super().__init__(recipe, files)
        self._there = _Process(BlockWork(recipe), begun)

    def load(
        self, entries: Entries, rows: range, draws: Draws, out: torch.Tensor, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        slab, offset = slab_of(out)
        asked = _Pixels(_Rows.of(entries, rows, draws, leave_out), slab.number, slab.nbytes, offset, tuple(out.shape), out.dtype)
        found = self._there.ask(asked, [slab])
        if found is None:
            return super().load(entries, rows, draws, out, leave_out=leave_out)
        report: BlockReport = found[0]
        return report


class ProcessFetchWorker(FetchWorker):
    """A `FetchWorker` that reads and parses elsewhere."""

    def __init__(self, recipe: Recipe, files: Files, geometry: Recipe, graph: GraphOptions, begun: Launcher) -> None:
        super().__init__(BlockWorker(recipe, files), geometry, graph)
        self._there = _Process(FetchWork(recipe, geometry, graph), begun)

    def load(
        self, entries: Entries, rows: range, draws: Draws, batch: Fetched, first: int, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        found = self._there.ask(_Rows.of(entries, rows, draws, leave_out)) if batch.is_open else None
        if found is None:
            return super().load(entries, rows, draws, batch, first, leave_out=leave_out)
        encoded, descriptors = found
        if encoded.cuts is not None:
            with open(descriptors[0], "rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            places = zip([0, *encoded.ends], encoded.ends, strict=False)
            samples = [
                EncodedSample(row, cast("bytes", data[start:end]), header)  # DALI takes any buffer
                for row, (start, end), header in zip(encoded.rows, places, encoded.headers, strict=True)
            ]
            batch.give(first, samples, encoded.cuts)
        batch.by_hand.update({first + row: pixels for row, pixels in encoded.by_hand.items()})
        report: BlockReport = encoded.report
        return report


def begin_processes() -> Launcher | None:
    """Begin what forks workers for images, if that has not been done. None: it cannot be begun."""
    return launcher(_IMPORTS)


def await_processes(num_workers: int) -> None:
    """Wait until a loader with so many workers would have its processes from the start: to measure what it does later on."""
    begun = begin_processes() if wanted(num_workers) else None
    if begun is not None:
        begun.wait(_PATIENCE_S)
