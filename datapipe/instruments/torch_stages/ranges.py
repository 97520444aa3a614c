"""NVTX ranges, which Nsight Systems shows next to the GPU's work; none unless requested.

torch has them in builds for CUDA, and the package nvtx has them everywhere. torch's are preferred, since they need no
installation.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from datapipe.errors import DependencyError


class Recorder(Protocol):
    """A recorder of ranges. Thread-safe, for properly nested calls of one thread, and for spans of any kind."""

    def push(self, name: str) -> None:
        """Begin a range of this thread, nested in those it has begun."""

    def pop(self) -> None:
        """End the latest range of this thread."""

    def start(self, name: str) -> Any:
        """Begin a range of the process, which may overlap others; return the argument for `end`."""

    def end(self, started: Any) -> None:
        """End a range that `start` began."""


class TorchRecorder:
    """A recorder by `torch.cuda.nvtx`, which creates no CUDA context."""

    def __init__(self, torch: Any) -> None:
        ranges = torch.cuda.nvtx
        self.push, self.pop = ranges.range_push, ranges.range_pop
        self.start, self.end = ranges.range_start, ranges.range_end


class PackageRecorder:
    """A recorder by the package nvtx."""

    def __init__(self, nvtx: Any) -> None:
        self.push, self.pop = nvtx.push_range, nvtx.pop_range
        self.start, self.end = nvtx.start_range, nvtx.end_range


def open_recorder() -> Recorder:
    """Return this process's recorder. Imports torch only if the package is missing. Raises DependencyError without either."""
    if _is_built_for_cuda(sys.modules.get("torch")):
        return TorchRecorder(sys.modules["torch"])
    if find_spec("nvtx") is not None:
        return PackageRecorder(import_module("nvtx"))
    torch = import_module("torch")
    if _is_built_for_cuda(torch):
        return TorchRecorder(torch)
    raise DependencyError(
        f"no NVTX: torch {torch.__version__} is built without CUDA, and nvtx is not installed; pip install nvtx"
    )


def set_recorder(recorder: Recorder | None) -> None:
    """Set the recorder of this process, and of workers forked from it, from now on."""
    global _recorder
    _recorder = recorder


def recorder() -> Recorder | None:
    """Return the recorder; None: there is none."""
    return _recorder


_recorder: Recorder | None = None


def _is_built_for_cuda(torch: Any) -> bool:
    return bool(getattr(getattr(torch, "version", None), "cuda", None))
