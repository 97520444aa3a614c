"""An order in which each step has samples of one bucket."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from datapipe.order.draws import Ints, key64
from datapipe.order.plan import Tail
from datapipe.order.sample_order import ABSENT, Permutation

_STEPS_PURPOSE, _SAMPLES_PURPOSE = 0x73746570, 0x6275636B


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BucketedOrder:
    """Steps of one bucket each, over all ranks: the samples of a bucket are shuffled and divided into steps, and the steps mixed.

    What fills no step comes last, bucket by bucket: its step is filled up by samples of the same bucket, which come again in the
    epoch; that of the bucket of which least is left is the last, and filled only under `Tail.MASK`. Under `Tail.DROP` these steps
    are left out. Which samples they have differs from epoch to epoch. Ranks do not matter, only the samples of a step over all of
    them.

    A step takes `batch_size * num_ranks` positions. Of a bucket whose batches have fewer samples the others are `ABSENT`.
    """

    members: Ints  # (m,) samples by bucket
    starts: Ints  # (k + 1,) where the buckets begin in them
    counts: Ints  # (k,) samples of each bucket in an epoch; more than it has: its samples come again
    shares: Ints  # (k,) samples of a batch of each bucket, on one rank
    batch_size: int  # the most that one may have
    num_ranks: int
    seed: int
    tail: Tail
    shuffle: bool
    _first: Ints = field(init=False)  # (k + 1,) the number of the first full step of each bucket, and of all
    _left: Ints = field(init=False)  # the buckets of the steps that are not full, in order; none under `Tail.DROP`

    def __post_init__(self) -> None:
        put = object.__setattr__
        full, left = np.divmod(self.counts, self._of_step)
        put(self, "_first", np.concatenate([[0], np.cumsum(full)]))
        by_left = np.argsort(-left, kind="stable")
        put(self, "_left", by_left[left[by_left] > 0] if self.tail is not Tail.DROP else by_left[:0])

    @property
    def _of_step(self) -> Ints:
        """(k,) samples of a full step of each bucket."""
        return self.shares * self.num_ranks

    @property
    def kind(self) -> str:
        sizes = np.unique(self._of_step)
        steps = str(sizes[0])
        if len(sizes) > 1:
            steps = f"{sizes[0]} to {sizes[-1]} ({hashlib.sha256(self._of_step.tobytes()).hexdigest()[:8]})"
        return f"{'shuffled' if self.shuffle else 'sequential'} in buckets, in steps of {steps}"

    @property
    def num_filling(self) -> int:
        """Samples of an epoch that come again, as they fill a step up."""
        filled = self._left if self._ends_full else self._left[:-1]
        return int((self._of_step[filled] - self.counts[filled] % self._of_step[filled]).sum())

    @property
    def num_dropped(self) -> int:
        """Samples that an epoch lacks, as they fill no step."""
        return int((self.counts % self._of_step).sum()) if self.tail is Tail.DROP else 0

    @property
    def _ends_full(self) -> bool:
        """Whether the last step has as many samples as others of its bucket."""
        return self.tail is Tail.MASK or not len(self._left)

    def __len__(self) -> int:
        positions = (int(self._first[-1]) + len(self._left)) * self.batch_size * self.num_ranks
        if self._ends_full:
            return positions
        last = self._left[-1]
        return positions - self.batch_size * self.num_ranks + int(self.counts[last] % self._of_step[last])

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        buckets, places = self._places(epoch, np.asarray(positions, np.int64))
        found = np.full(len(positions), ABSENT, np.int64)
        for bucket in np.unique(buckets).tolist():
            here = (buckets == bucket) & (places != ABSENT)
            start, end = self.starts[bucket : bucket + 2].tolist()
            rounds, within = np.divmod(places[here], end - start)
            if self.shuffle:
                for once in np.unique(rounds).tolist():  # each time in another order
                    key = key64(self.seed, epoch, bucket, once, _SAMPLES_PURPOSE)
                    within[rounds == once] = Permutation(end - start, int(key))(within[rounds == once])
            found[here] = self.members[start + within]
        return found

    def occurrences(self, epoch: int, positions: Ints) -> Ints:
        """Return how often the sample at each of these positions came before in the epoch."""
        buckets, places = self._places(epoch, np.asarray(positions, np.int64))
        return places // np.diff(self.starts)[buckets]

    def fills(self, epoch: int, positions: Ints) -> NDArray[np.bool_]:
        """Return which of these positions have a sample that fills a step up."""
        buckets, places = self._places(epoch, np.asarray(positions, np.int64))
        return places >= self.counts[buckets]

    def _places(self, epoch: int, positions: Ints) -> tuple[Ints, Ints]:
        """Return the bucket of each position, and the place among its `counts`, or ABSENT. Those beyond it fill steps up."""
        steps, within = np.divmod(positions, self.batch_size * self.num_ranks)
        num_full = int(self._first[-1])
        is_full = steps < num_full
        full = steps[is_full]
        if self.shuffle and num_full:
            full = Permutation(num_full, int(key64(self.seed, epoch, _STEPS_PURPOSE)))(full)
        buckets = np.empty(len(positions), np.int64)
        buckets[is_full] = np.searchsorted(self._first, full, side="right") - 1
        buckets[~is_full] = self._left[steps[~is_full] - num_full]
        number = self.counts[buckets] // self._of_step[buckets]  # of the step within its bucket
        number[is_full] = full - self._first[buckets[is_full]]
        ranks, rows = np.divmod(within, self.batch_size)
        shares = self.shares[buckets]
        places = np.where(rows < shares, ranks * shares + rows, ABSENT)
        if not self._ends_full:  # the last step is what is left, divided among the ranks
            places = np.where(steps == num_full + len(self._left) - 1, within, places)
        return buckets, np.where(places == ABSENT, ABSENT, number * self._of_step[buckets] + places)
