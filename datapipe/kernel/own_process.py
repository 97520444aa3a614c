"""Give a decode thread a worker process of its own, which fills tensors where the thread would do so itself."""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch

from datapipe.core.printable import get_logger
from datapipe.kernel.process_main import Handler, Scratch
from datapipe.kernel.processes import Launcher, WorkerEndedError, WorkerProcess

_KNOWN = frozenset(("datapipe", "torch", "numpy", "builtins", "enum", "functools", "collections"))  # packages of what is sent

logger = get_logger(__name__)


Fill = Callable[..., Any]  # fills a tensor, its first argument, as the others ask; what it returns is no None


class OwnProcess:
    """The worker process of a thread, which begins as soon as one can, and is done without once it has ended.

    `make`: called in the process; what it returns fills tensors there.
    """

    def __init__(self, begun: Launcher, make: Callable[[], Fill]) -> None:
        self._launcher: Launcher | None = begun
        self._make = _Handling(make)
        self._process: WorkerProcess | None = None
        self._owner = os.getpid()

    def fill(self, out: torch.Tensor, *asked: Any) -> Any:
        """Fill a tensor with what the process makes, and return what it answers.

        None: there is no process, or it has ended, and the thread is to do the work itself. Raises what was raised there.
        """
        shape = tuple(out.shape)
        try:
            process = self._found()
            if process is None:
                return None
            answer, memory = process.ask((shape, out.dtype, asked))
        except WorkerEndedError as exc:
            logger.warning("%s", exc)
            self._process = self._launcher = None
            return None
        out.copy_(_tensor_over(memory, shape, out.dtype))
        return answer

    def _found(self) -> WorkerProcess | None:
        if self._launcher is None or os.getpid() != self._owner:  # forked children do without
            return None
        if self._process is None and self._launcher.is_ready:
            try:
                self._process = WorkerProcess(self._launcher, self._make)
            except WorkerEndedError:
                raise
            except Exception as exc:  # something that the worker could not import, or open
                raise WorkerEndedError(f"a worker process could not begin ({exc}); a thread does its work") from exc
        return self._process


@dataclass(frozen=True, slots=True)
class _Handling:
    """Makes the handler of a worker that fills tensors in its scratch memory, as they are too large to be sent."""

    make: Callable[[], Fill]

    def __call__(self) -> Handler:
        torch.set_num_threads(1)
        fill = self.make()

        def handle(request: Any, scratch: Scratch) -> Any:
            shape, dtype, asked = request
            return fill(_tensor_over(scratch.take(_nbytes(shape, dtype)), shape, dtype), *asked)

        return handle


def _tensor_over(memory: memoryview, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor over the beginning of some memory, without a copy."""
    return torch.from_numpy(np.frombuffer(memory, np.uint8, _nbytes(shape, dtype))).view(dtype).view(shape)


def can_be_sent(thing: Any) -> bool:
    """Return whether a worker can have a thing, such as a recipe: pickle takes it, and nothing in it is the user's own."""
    try:
        _Looking(io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(thing)
    except Exception:
        return False
    return True


class _Looking(pickle.Pickler):
    """Refuses what is not of a known package."""

    def reducer_override(self, thing: Any) -> Any:
        named = thing if isinstance(thing, (type, FunctionType)) else type(thing)
        if named.__module__.partition(".")[0] not in _KNOWN:
            raise pickle.PicklingError(f"{named.__module__}.{named.__qualname__} is the user's")
        return NotImplemented


def _nbytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize
