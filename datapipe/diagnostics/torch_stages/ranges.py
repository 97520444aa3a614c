"""NVTX ranges, which Nsight Systems shows beside the GPU's work. None, unless they were asked for.

torch has them in builds for CUDA, and the package nvtx everywhere; torch's are preferred, as they need nothing installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from datapipe.errors import DependencyError


class Recorder(Protocol):
    """Thread-safe, for calls of one thread that are properly nested, and for spans of any kind."""

    def push(self, name: str) -> None:
        """A range of this thread begins, within those that it has begun."""

    def pop(self) -> None:
        """The latest range of this thread ends."""

    def start(self, name: str) -> Any:
        """A range of the process begins, whatever it crosses; returned is what `end` takes."""

    def end(self, started: Any) -> None:
        """It ends."""


class TorchRecorder:
    """By `torch.cuda.nvtx`, which makes no CUDA context."""

    def __init__(self, torch: Any) -> None:
        ranges = torch.cuda.nvtx
        self.push, self.pop = ranges.range_push, ranges.range_pop
        self.start, self.end = ranges.range_start, ranges.range_end


class PackageRecorder:
    """By the package nvtx."""

    def __init__(self, nvtx: Any) -> None:
        self.push, self.pop = nvtx.push_range, nvtx.pop_range
        self.start, self.end = nvtx.start_range, nvtx.end_range


def open_recorder() -> Recorder:
    """What this process has. Imports torch only where the package is missing. Raises DependencyError where there is neither."""
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
    """Who takes the ranges of this process, and of workers that are forked from it, from now on."""
    global _recorder
    _recorder = recorder


def recorder() -> Recorder | None:
    """Who takes them; None: nobody."""
    return _recorder


_recorder: Recorder | None = None


def _is_built_for_cuda(torch: Any) -> bool:
    return bool(getattr(getattr(torch, "version", None), "cuda", None))
