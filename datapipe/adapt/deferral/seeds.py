"""Seed the random state of a sample: torch's default generator, Python's `random` and numpy's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.order.draws import key64, mix64

_SAMPLES = 0x5EED  # separates these draws from those of operations, whose numbers are small


def sample_seeds(seed: int, epoch: int, keys: NDArray[np.int64]) -> list[int]:
    """Return a seed per sample, from 0 to 2^63 - 1. `keys`: (n,) identify the samples of an epoch."""
    words = mix64(keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ key64(seed, epoch, _SAMPLES))
    return (words >> np.uint64(1)).tolist()  # type: ignore[no-any-return]


def reseed(seed: int) -> None:
    """Seed torch's default CPU generator, `random` and numpy's global state."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the three states afterwards, for samples that are made in the training process."""
    states = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
