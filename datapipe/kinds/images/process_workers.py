"""Decode threads that have a worker process each: the same work as `BlockWorker`'s, done there.

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
from typing import Any, cast

import numpy as np
import torch
from PIL import ImageFile

from datapipe.core.printable import get_logger
from datapipe.fetch.files import Files
from datapipe.fetch.local import LocalFiles
from datapipe.index.entries import Entries
from datapipe.kernel.process_main import Handler, Scratch
from datapipe.kernel.processes import Launcher, WorkerEndedError, WorkerProcess, launcher, wanted
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe

_IMPORTS = (__name__,)
_PATIENCE_S = 20.0
_KNOWN = frozenset(("datapipe", "torch", "numpy", "builtins", "enum", "functools", "collections"))  # packages of what is sent

logger = get_logger(__name__)


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
            out = _tensor(scratch.take(_nbytes(asked.shape, asked.dtype)), asked.shape, asked.dtype)
            return worker.load(asked.entries, range(len(asked.entries)), asked.draws, out, leave_out=asked.leave_out)

        return handle


def _nbytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _tensor(memory: memoryview, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over the beginning of some memory, without a copy."""
    return torch.from_numpy(np.frombuffer(memory, np.uint8, _nbytes(shape, dtype))).view(dtype).view(shape)


class ProcessBlockWorker(BlockWorker):
    """A `BlockWorker` with a process, which begins as soon as one can, and is done without once it has ended."""

    def __init__(self, recipe: Recipe, files: Files, begun: Launcher) -> None:
        super().__init__(recipe, files)
        self._work = BlockWork(recipe)
        self._launcher: Launcher | None = begun
        self._process: WorkerProcess | None = None
        self._owner = os.getpid()

    def load(
        self, entries: Entries, rows: range, draws: Draws, out: torch.Tensor, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        try:
            process = self._found()
            if process is not None:
                some = slice(rows.start, rows.stop)
                own = Entries(entries.ids[some], entries.labels[some], entries.extents.take(list(rows)))
                alone = Draws(draws.seed, draws.epoch, draws.ids)  # without the whole batch's, which they refer to
                shape = tuple(out.shape)
                report, memory = process.ask(_Request(own, alone, list(leave_out), shape, out.dtype))
                out.copy_(_tensor(memory, shape, out.dtype))
                return cast("BlockReport", report)
        except WorkerEndedError as exc:
            logger.warning("%s", exc)
            self._process = self._launcher = None
        return super().load(entries, rows, draws, out, leave_out=leave_out)

    def _found(self) -> WorkerProcess | None:
        """Return the process; None: there is none, and the thread is to do the work itself. Raises WorkerEndedError."""
        if self._launcher is None or os.getpid() != self._owner:  # forked children do without
            return None
        if ImageFile.LOAD_TRUNCATED_IMAGES:  # a setting of Pillow's that the process does not have
            return None
        if self._process is None and self._launcher.is_ready:
            try:
                self._process = WorkerProcess(self._launcher, self._work)
            except WorkerEndedError:
                raise
            except Exception as exc:  # something that the worker could not import
                raise WorkerEndedError(f"a worker process could not begin ({exc}); a thread does its work") from exc
        return self._process


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
