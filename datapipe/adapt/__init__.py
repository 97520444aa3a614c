"""torch's loaders made ours, as far as that goes."""

from __future__ import annotations

from datapipe.adapt.takeover import from_torch

__all__ = ["from_torch"]
