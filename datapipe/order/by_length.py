"""Orders that look at how long samples are: those of like lengths together, or steps that cost all ranks alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.order.draws import key64
from datapipe.order.sample_order import Order, Permutation

Ints = NDArray[np.int64]

_BATCHES = 50  # steps whose samples are sorted by length with each other
_BATCHES_PURPOSE = 0x6C656E677468


@dataclass(frozen=True, slots=True, eq=False)
class LikeLengths:
    """A shuffle whose steps have samples of like lengths.

    The samples of an epoch are shuffled in full; those of every 50 steps are then sorted by length and divided into steps, which
    come in random order. Samples that fill no step come last. Ranks do not matter, only the samples of a step over all of them.
    """

    num_samples: int
    seed: int
    global_batch: int
    lengths_of: Callable[[Ints], Ints]

    @property
    def kind(self) -> str:
        return f"like lengths in steps of {self.global_batch}"

    def __len__(self) -> int:
        return self.num_samples

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        shuffled = Permutation(self.num_samples, int(key64(self.seed, epoch)))
        found = np.empty(len(positions), np.int64)
        groups = np.minimum(positions, self._num_full) // (_BATCHES * self.global_batch)
        is_left = positions >= self._num_full
        found[is_left] = shuffled(positions[is_left])
        for group in np.unique(groups[~is_left]).tolist():
            here = (groups == group) & ~is_left
            found[here] = self._sorted(epoch, group, shuffled)[positions[here] - group * _BATCHES * self.global_batch]
        return found

    @property
    def _num_full(self) -> int:
        """Samples of full steps."""
        return self.num_samples // self.global_batch * self.global_batch

    def _sorted(self, epoch: int, group: int, shuffled: Permutation) -> Ints:
        """Return the samples of up to 50 steps, in order."""
        first = group * _BATCHES * self.global_batch
        num = min(self._num_full - first, _BATCHES * self.global_batch)
        samples = shuffled(np.arange(first, first + num, dtype=np.int64))
        steps = samples[np.argsort(self.lengths_of(samples), kind="stable")].reshape(-1, self.global_batch)
        key = int(key64(self.seed, epoch, group, _BATCHES_PURPOSE))
        return steps[Permutation(len(steps), key)(np.arange(len(steps)))].reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class BalancedSteps:
    """Another order within each optimizer step, so that at every micro-batch all ranks have samples of like cost.

    An optimizer step is `accumulate` micro-batches of `global_batch` samples. Its samples are sorted by cost; each micro-batch
    takes neighbours, and deals them so that any equal division among ranks is even. An optimizer step has the same samples as
    before.
    """

    order: Order
    global_batch: int
    accumulate: int
    cost_of: Callable[[int, Ints], NDArray[np.float64]]  # of an epoch, samples

    @property
    def kind(self) -> str:
        return f"{self.order.kind}, balanced over {self.accumulate} x {self.global_batch}"

    def __len__(self) -> int:
        return len(self.order)

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        size = self.global_batch * self.accumulate
        groups, within = np.divmod(positions, size)
        found = np.empty(len(positions), np.int64)
        for group in np.unique(groups).tolist():
            here = groups == group
            if (group + 1) * size > len(self.order):  # the rest of the epoch
                found[here] = self.order(epoch, positions[here])
                continue
            samples = self.order(epoch, np.arange(group * size, (group + 1) * size, dtype=np.int64))
            by_cost = samples[np.argsort(self.cost_of(epoch, samples), kind="stable")].reshape(self.accumulate, self.global_batch)
            found[here] = by_cost[:, _evenly(self.global_batch)].reshape(-1)[within[here]]
        return found


@functools.lru_cache(maxsize=16)
def _evenly(num: int) -> Ints:
    """Return an order of range(num) of whose every stretch the numbers are spread evenly: van der Corput's sequence."""
    bits = max(1, (num - 1).bit_length())
    values = np.arange(num)
    reversed_bits = sum(((values >> bit) & 1) << (bits - 1 - bit) for bit in range(bits))
    return np.argsort(np.argsort(reversed_bits, kind="stable"), kind="stable").astype(np.int64)
