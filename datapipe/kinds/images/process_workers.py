"""Decode threads that have a worker process each: the same work as `BlockWorker`'s and `FetchWorker`'s, done there.

What a process makes comes in memory of its own, from which the thread copies it, without Python's lock.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Collection
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ImageFile

from datapipe.codecs.probe import ImageHeader
from datapipe.core.printable import get_logger
from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.index.entries import Entries
from datapipe.kernel.process_main import Handler, Scratch
from datapipe.kernel.processes import Launcher, WorkerEndedError, WorkerProcess, launcher, wanted
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.kinds.images.dali_stage import Fetched, FetchWorker
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker, EncodedSample
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.protocols import Cuts

_IMPORTS = (__name__,)
_PATIENCE_S = 20.0
_KNOWN = frozenset(("datapipe", "torch", "numpy", "builtins", "enum", "functools", "collections"))  # packages of what is sent

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Request:
    """Samples to be loaded, the draws of each, and the memory that they are to fill."""

    entries: Entries
    seed: int
    epoch: int
    keys: NDArray[np.int64]  # with which samples draw
    leave_out: Collection[int]
    shape: tuple[int, ...]  # of the rows of pixels; empty for encoded bytes
    dtype: torch.dtype

    @property
    def num_rows(self) -> int:
        return len(self.entries)

    @property
    def draws(self) -> Draws:
        return Draws(self.seed, self.epoch, self.keys)


class _Encoded(NamedTuple):
    """A fetched block for DALI. The bytes of its samples lie in the scratch memory, one after the other."""

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

        def handle(asked: _Request, scratch: Scratch) -> BlockReport:
            out = _tensor(scratch.take(_nbytes(asked.shape, asked.dtype)), asked.shape, asked.dtype)
            return worker.load(asked.entries, range(asked.num_rows), asked.draws, out, leave_out=asked.leave_out)

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

        def handle(asked: _Request, scratch: Scratch) -> _Encoded:
            block = Fetched(asked.num_rows, self.graph.height, self.graph.width)
            report = worker.load(asked.entries, range(asked.num_rows), asked.draws, block, 0, leave_out=asked.leave_out)
            given = block.rows_given()
            samples = [sample for sample in block.samples if sample is not None]
            ends = np.cumsum([len(sample.data) for sample in samples], dtype=np.int64).tolist()
            memory = scratch.take(ends[-1] if ends else 0)
            for start, end, sample in zip([0, *ends], ends, samples, strict=False):
                memory[start:end] = sample.data
            cuts = block.cuts[np.array(given, np.int64)] if given else None
            return _Encoded(report, given, ends, [sample.header for sample in samples], cuts, block.by_hand)

        return handle


def _nbytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _tensor(memory: memoryview, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over the beginning of some memory, without a copy."""
    return torch.from_numpy(np.frombuffer(memory, np.uint8, _nbytes(shape, dtype))).view(dtype).view(shape)


class _Process:
    """The process of one thread, which begins as soon as one can, and is done without once it has ended."""

    def __init__(self, work: BlockWork | FetchWork, begun: Launcher) -> None:
        self._work = work
        self._launcher: Launcher | None = begun
        self._process: WorkerProcess | None = None
        self._owner = os.getpid()

    def ask(
        self,
        entries: Entries,
        rows: range,
        draws: Draws,
        leave_out: Collection[int],
        *,
        shape: tuple[int, ...] = (),
        dtype: torch.dtype = torch.uint8,
    ) -> tuple[Any, memoryview] | None:
        """Return the process's answer and its memory; None: it has none, and the thread is to do the work itself."""
        if self._launcher is None or os.getpid() != self._owner:  # forked children do without
            return None
        if ImageFile.LOAD_TRUNCATED_IMAGES:  # a setting of Pillow's that the process does not have
            return None
        try:
            if self._process is None:
                if not self._launcher.is_ready:
                    return None
                self._process = self._begin(self._launcher)
            some = slice(rows.start, rows.stop)
            own = Entries(entries.ids[some], entries.labels[some], entries.extents.take(list(rows)))
            return self._process.ask(_Request(own, draws.seed, draws.epoch, draws.ids, list(leave_out), shape, dtype))
        except WorkerEndedError as exc:
            logger.warning("%s", exc)
            self._process = self._launcher = None
            return None

    def _begin(self, begun: Launcher) -> WorkerProcess:
        try:
            return WorkerProcess(begun, self._work)
        except WorkerEndedError:
            raise
        except Exception as exc:  # something that the worker could not import
            raise WorkerEndedError(f"a worker process could not begin ({exc}); a thread does its work") from exc


class ProcessBlockWorker(BlockWorker):
    """A `BlockWorker` with a process."""

    def __init__(self, recipe: Recipe, files: Files, begun: Launcher) -> None:
        super().__init__(recipe, files)
        self._there = _Process(BlockWork(recipe), begun)

    def load(
        self, entries: Entries, rows: range, draws: Draws, out: torch.Tensor, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        shape = tuple(out.shape)
        found = self._there.ask(entries, rows, draws, leave_out, shape=shape, dtype=out.dtype)
        if found is None:
            return super().load(entries, rows, draws, out, leave_out=leave_out)
        report: BlockReport = found[0]
        out.copy_(_tensor(found[1], shape, out.dtype))
        return report


class ProcessFetchWorker(FetchWorker):
    """A `FetchWorker` that reads and parses elsewhere."""

    def __init__(self, recipe: Recipe, files: Files, geometry: Recipe, graph: GraphOptions, begun: Launcher) -> None:
        super().__init__(BlockWorker(recipe, files), geometry, graph)
        self._there = _Process(FetchWork(recipe, geometry, graph), begun)

    def load(
        self, entries: Entries, rows: range, draws: Draws, batch: Fetched, first: int, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        found = self._there.ask(entries, rows, draws, leave_out) if batch.is_open else None
        if found is None:
            return super().load(entries, rows, draws, batch, first, leave_out=leave_out)
        encoded, memory = found
        if encoded.cuts is not None:
            data = _tensor(memory, (encoded.ends[-1],), torch.uint8).clone().numpy().data
            places = zip([0, *encoded.ends], encoded.ends, strict=False)
            samples = [
                EncodedSample(row, cast("bytes", data[start:end]), header)  # DALI takes any buffer
                for row, (start, end), header in zip(encoded.rows, places, encoded.headers, strict=True)
            ]
            batch.give(first, samples, encoded.cuts)
        batch.by_hand.update({first + row: pixels for row, pixels in encoded.by_hand.items()})
        report: BlockReport = encoded.report
        return report


class _Looking(pickle.Pickler):
    """Refuses what is not of a known package."""

    def reducer_override(self, thing: Any) -> Any:
        named = thing if isinstance(thing, (type, FunctionType)) else type(thing)
        if named.__module__.partition(".")[0] not in _KNOWN:
            raise pickle.PicklingError(f"{named.__module__}.{named.__qualname__} is the user's")
        return NotImplemented


def can_be_sent(recipe: Recipe) -> bool:
    """Return whether a worker can carry a recipe out: pickle takes it, and nothing in it is the user's own."""
    try:
        _Looking(io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(recipe)
    except Exception:
        return False
    return True


def begin_processes() -> Launcher | None:
    """Begin what forks workers for images, if that has not been done. None: it cannot be begun."""
    return launcher(_IMPORTS)


def await_processes(num_workers: int) -> None:
    """Wait until a loader with so many workers would have its processes from the start: to measure what it does later on."""
    begun = begin_processes() if wanted(num_workers) else None
    if begun is not None:
        begun.wait(_PATIENCE_S)
