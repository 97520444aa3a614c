"""NVTX ranges, which Nsight Systems shows next to the GPU's work; none unless requested.

torch has them in builds for CUDA, and the package nvtx has them everywhere. torch's are preferred, since they need no
installation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from datapipe.errors import DependencyError


@dataclass(frozen=True, slots=True)
class Recorder:
    """A recorder of ranges. Thread-safe, for properly nested calls of one thread, and for spans of any kind."""

    push: Callable[[str], object]  # begins a range of this thread, nested in those it has begun
    pop: Callable[[], object]  # ends the latest range of this thread
    start: Callable[[str], Any]  # begins a range of the process, which may overlap others; returns the argument for `end`
    end: Callable[[Any], object]  # ends a range that `start` began


def open_recorder() -> Recorder:
    """Return this process's recorder. Imports torch only if the package is missing. Raises DependencyError without either."""
    torch: Any = sys.modules.get("torch")
    if not _is_built_for_cuda(torch):
        if find_spec("nvtx") is not None:
            nvtx = import_module("nvtx")
            return Recorder(nvtx.push_range, nvtx.pop_range, nvtx.start_range, nvtx.end_range)
        torch = import_module("torch")
    if _is_built_for_cuda(torch):
        ranges = torch.cuda.nvtx  # creates no CUDA context
        return Recorder(ranges.range_push, ranges.range_pop, ranges.range_start, ranges.range_end)
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
