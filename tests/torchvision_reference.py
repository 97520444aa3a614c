"""torchvision, to compare with. Its compiled part need not fit this torch; see benchmarks.contenders."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from benchmarks.contenders.torchvision_transforms import import_torchvision


def torchvision_v2(*, measured: bool = False) -> Any:
    """torchvision.transforms.v2; skips the test (or, at a module's head, the module) where it is not installed.

    `measured`: also where it is so old that distances from it are not the published ones: with 0.21 and torch 2.6, tensors are
    resized by one level differently, and modes of interpolation have no names.
    """
    try:
        version = import_torchvision().__version__
    except ImportError:
        pytest.skip("torchvision is not installed; there is nothing to compare with", allow_module_level=True)
    if measured and version.startswith("0.21."):
        pytest.skip(f"torchvision {version} computes otherwise than that of the published distances", allow_module_level=True)
    return importlib.import_module("torchvision.transforms.v2")
