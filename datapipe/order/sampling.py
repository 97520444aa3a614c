"""Orders in which samples come more or less often than once: drawn with replacement, or mixed from several datasets.

Like all orders they are arithmetic: any process can ask for any part of any epoch. A sample that comes several times in an
epoch has a number each time, its *occurrence*, so that it is not augmented the same way twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import OptionError
from datapipe.order.draws import Draws, Ints, key64, to_unit
from datapipe.order.sample_order import Order

MAX_MIXED = 1 << 31  # samples of an epoch: products of two such numbers fit 64 bits


@dataclass(frozen=True, slots=True, eq=False)
class WeightedOrder:
    """Samples drawn with replacement, each as likely as its weight, `num_samples` of them an epoch."""

    cumulated: NDArray[np.float64]  # (n,) sums of the weights up to each sample
    num_samples: int
    seed: int

    @property
    def kind(self) -> str:
        """The name in saved states, with weights and length: under others the same place in an epoch is another one."""
        return f"weighted {hashlib.sha256(self.cumulated.tobytes()).hexdigest()[:12]}, {self.num_samples} an epoch"

    def __len__(self) -> int:
        return self.num_samples

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        drawn = to_unit(Draws(self.seed, epoch, positions).words(0, 1))[:, 0] * self.cumulated[-1]
        found: Ints = np.searchsorted(self.cumulated, drawn, side="right").astype(np.int64)
        # A product may be rounded up to the sum of all weights; the last sample may have the weight 0.
        last = int(np.searchsorted(self.cumulated, self.cumulated[-1], side="left"))
        return np.minimum(found, last)

    def occurrences(self, epoch: int, positions: Ints, /) -> Ints:
        """Return (m,) a number unique among the drawings of a sample in this epoch."""
        return positions


def checked_weights(weights: object, *, num: int, what: str) -> NDArray[np.float64]:
    """Return (n,) weights, finite, none negative and not all zero. Raises OptionError for others."""
    try:
        values = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as exc:
        raise OptionError(f"weights are {weights!r:.60}; pass a number for each {what}") from exc
    if values.shape != (num,):
        raise OptionError(f"weights have the shape {values.shape}; pass one for each of the {num} {what}s")
    if not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise OptionError("weights must be finite, none of them negative, and not all zero")
    return values


@dataclass(frozen=True, slots=True, eq=False)
class MixedOrder:
    """Several orders interleaved, each with a fixed number of samples in every epoch.

    The k-th sample of an epoch belongs to a fixed one of them, spread so evenly that in any stretch of an epoch each has its
    share to within two samples. All samples of an order come before any of them comes again, and an epoch
    continues where the one before stopped: the number of a pass over an order is the epoch that the order is asked for. Positions
    count through the datasets one after the other.
    """

    orders: Sequence[Order]
    counts: tuple[int, ...]  # samples of each in every epoch
    is_shuffled: bool = True

    @property
    def kind(self) -> str:
        """The name in saved states, with the shares: under others the same place in an epoch is another one."""
        how = "mixed" if self.is_shuffled else "mixed in stored order"
        return f"{how} {':'.join(map(str, self.counts))}"

    def __len__(self) -> int:
        return sum(self.counts)

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        which, number = interleaved(self.counts, positions)
        found = np.empty(len(positions), np.int64)
        first = 0
        for place, order in enumerate(self.orders):
            mine = np.flatnonzero(which == place)
            passes, within = np.divmod(number[mine] + epoch * self.counts[place], max(1, len(order)))
            for turn in np.unique(passes):
                now = passes == turn
                found[mine[now]] = first + order(int(turn), within[now])
            first += len(order)
        return found

    def occurrences(self, epoch: int, positions: Ints, /) -> Ints:
        """Return (m,) how often each sample came before, over all epochs."""
        which, number = interleaved(self.counts, positions)
        lengths = np.array([max(1, len(order)) for order in self.orders], np.int64)
        return (number + epoch * np.array(self.counts, np.int64)[which]) // lengths[which]


def shares(weights: Sequence[float], num_samples: int) -> tuple[int, ...]:
    """Divide `num_samples` by weight, in whole numbers: each is off by less than one (largest remainder)."""
    total = sum(map(Fraction, weights))
    exact = [Fraction(weight) * num_samples / total for weight in weights]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(counts)), key=lambda place: counts[place] - exact[place])
    for place in by_remainder[: num_samples - sum(counts)]:
        counts[place] += 1
    return tuple(counts)


def interleaved(counts: Sequence[int], positions: Ints) -> tuple[Ints, Ints]:
    """Return to which of several evenly interleaved sequences each position belongs, and its number in that sequence.

    The j-th of m elements lies at (2j + 1) / 2m of the way; all are merged by that, the first sequence winning ties.
    The place of an element in the merge is a sum of roundings, and so exact; it is found by bisection.
    """
    num = sum(counts)
    which, number = np.full(len(positions), -1, np.int64), np.zeros(len(positions), np.int64)
    for place, count in enumerate(counts):
        if not count:
            continue
        centre, reach = positions * count // num, len(counts) * count // num + 2
        low, high = np.maximum(centre - reach, 0), np.minimum(centre + reach, count - 1)
        while (low < high).any():
            middle = (low + high) // 2
            reached = _rank(counts, place, middle) >= positions
            low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
        hit = _rank(counts, place, low) == positions
        which[hit], number[hit] = place, low[hit]
    return which, number


def _rank(counts: Sequence[int], place: int, number: Ints) -> Ints:
    """Return how many elements of all sequences come before these of sequence `place`."""
    own = counts[place]
    rank = number.copy()
    for other, count in enumerate(counts):
        if other == place or not count:
            continue
        # (2j + 1) / 2count < (2i + 1) / 2own, or equal to it if the other sequence wins ties
        reach = (2 * number + 1) * count - own
        rank += np.clip(reach // (2 * own) + 1 if other < place else -(-reach // (2 * own)), 0, count)
    return rank


def own_seed(seed: int, place: int) -> int:
    """Return the seed of one of several orders that are mixed: the first has that of the loader."""
    return int(key64(seed, place, 0x6D6978)) if place else seed
