"""Take over torch's loaders, as far as datapipe can see what they do."""

from __future__ import annotations

from datapipe.adapt.takeover import from_torch

__all__ = ["from_torch"]
