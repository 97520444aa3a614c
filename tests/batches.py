"""Batches that are dicts, compared."""

from __future__ import annotations

from typing import Any

import torch

Batches = list[dict[str, Any]]


def equal(first: Batches, second: Batches) -> bool:
    """Return whether batches have the same names, and under each the same tensor, or another equal value."""
    return len(first) == len(second) and all(
        one.keys() == other.keys() and all(map(_are_equal, one.values(), (other[name] for name in one)))
        for one, other in zip(first, second, strict=True)
    )


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)
