"""torchvision, to compare with. Its compiled part need not fit this torch; see benchmarks.contenders."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from benchmarks.contenders.torchvision_transforms import import_torchvision


def torchvision_v2() -> Any:
    """torchvision.transforms.v2; skips the test (or, at a module's head, the module) where it is not installed."""
    try:
        import_torchvision()
    except ImportError:
        pytest.skip("torchvision is not installed; there is nothing to compare with", allow_module_level=True)
    return importlib.import_module("torchvision.transforms.v2")
