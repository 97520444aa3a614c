"""The global random number generators: dropout and the user's own code draw from them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int, rank: int) -> None:
    """Seed torch's, numpy's and Python's generators; each rank draws its own numbers."""
    mixed = int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0] >> 1)
    torch.manual_seed(mixed)
    np.random.seed(mixed % 2**32)
    random.seed(mixed)


def generator_states(device: torch.device) -> dict[str, Any]:
    """Where this process's generators stand: tensors and plain values."""
    version, internal, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(place), int(has_gauss), float(cached)],
    }


def restore_generators(states: dict[str, Any], device: torch.device) -> None:
    """Go on drawing where `generator_states` was called."""
    torch.set_rng_state(states["torch"].cpu())
    if device.type == "cuda" and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, place, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), place, has_gauss, cached))
