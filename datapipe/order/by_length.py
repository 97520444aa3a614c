"""Orders that look at how long samples are: those of like lengths together, or steps that cost all ranks alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.order.draws import Ints, key64
from datapipe.order.sample_order import Order, Permutation

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
        found = np.empty(len(positions), np.int64)
        groups = np.minimum(positions, self.num_full) // (_BATCHES * self.global_batch)
        is_left = positions >= self.num_full
        found[is_left] = self.shuffled(epoch)(positions[is_left])
        for group in np.unique(groups[~is_left]).tolist():
            here = (groups == group) & ~is_left
            found[here] = _by_length(self, epoch, group)[positions[here] - group * _BATCHES * self.global_batch]
        return found

    @property
    def num_full(self) -> int:
        """Samples of full steps."""
        return self.num_samples // self.global_batch * self.global_batch

    def shuffled(self, epoch: int) -> Permutation:
        """Return the samples of an epoch before they are sorted."""
        return Permutation(self.num_samples, int(key64(self.seed, epoch)))


@functools.lru_cache(maxsize=8)  # for the steps of a group; an order is its own key, by identity
def _by_length(order: LikeLengths, epoch: int, group: int) -> Ints:
    """Return the samples of up to 50 steps, in order."""
    size = _BATCHES * order.global_batch
    samples = order.shuffled(epoch)(np.arange(group * size, min((group + 1) * size, order.num_full), dtype=np.int64))
    steps = samples[np.argsort(order.lengths_of(samples), kind="stable")].reshape(-1, order.global_batch)
    key = int(key64(order.seed, epoch, group, _BATCHES_PURPOSE))
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
            found[here] = _dealt(self, epoch, group)[within[here]]
        return found


@functools.lru_cache(maxsize=8)  # for the micro-batches of a step; an order is its own key, by identity
def _dealt(balanced: BalancedSteps, epoch: int, group: int) -> Ints:
    """Return the samples of an optimizer step, dealt to its micro-batches and ranks."""
    size = balanced.global_batch * balanced.accumulate
    samples = balanced.order(epoch, np.arange(group * size, (group + 1) * size, dtype=np.int64))
    by_cost = samples[np.argsort(balanced.cost_of(epoch, samples), kind="stable")]
    return by_cost.reshape(balanced.accumulate, balanced.global_batch)[:, _evenly(balanced.global_batch)].reshape(-1)


@functools.lru_cache(maxsize=16)
def _evenly(num: int) -> Ints:
    """Return an order of range(num) of whose every stretch the numbers are spread evenly: van der Corput's sequence."""
    bits = max(1, (num - 1).bit_length())
    values = np.arange(num)
    reversed_bits = sum(((values >> bit) & 1) << (bits - 1 - bit) for bit in range(bits))
    return np.argsort(np.argsort(reversed_bits, kind="stable"), kind="stable").astype(np.int64)
