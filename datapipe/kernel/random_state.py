"""The random state that the user's code draws from: torch's default generator, Python's `random` and numpy's global state.

All three belong to the process. Code that draws from them in a thread besides the training's would take its numbers away, so
such code runs in a process of its own, or between the training's draws, which then find the state as they left it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from datapipe.order.draws import key64
from datapipe.order.plan import Rank

_COLLATION = 0xC011A7E  # separates these draws from those of samples and operations


def reseed(seed: int) -> None:
    """Seed torch's default CPU generator, `random` and numpy's global state. `seed`: from 0 to 2^63 - 1."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the three states afterwards, for code of the user's that runs in the training process."""
    states = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


def collation_seed(seed: int, epoch: int, step: int, rank: Rank) -> int:
    """Return the seed in whose random state the user's `collate_fn` is called for a batch: from 0 to 2^63 - 1."""
    return int(key64(seed, epoch, _COLLATION, step * rank.world_size + rank.rank)) >> 1
