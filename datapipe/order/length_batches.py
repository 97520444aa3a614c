"""Batches of like lengths whose size is bounded, padding included: which samples each has is arithmetic, other ones every epoch.

Samples are sorted by length once, and divided into *classes* of like lengths. The batches of a class have equally many samples:
as many as fit, each padded to the longest of the class. An epoch shuffles each class and cuts it into its batches. Their number
does not change, so orders permute batches as they permute samples, and a place in an epoch is one number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datapipe.core.ranges import ranges
from datapipe.order.draws import Ints, key64
from datapipe.order.sample_order import Permutation

_SPREAD = 0.95  # the shortest of a class is as long as the longest times this, or more
_LEAST_BATCHES = 4  # of a class, whose samples have others beside them every epoch
_PURPOSE = 0x626174636865  # of a key


def by_length(lengths: Ints) -> Ints:
    """Return (n,) the samples from the shortest to the longest, to within a part in 65,535 of the longest."""
    units = lengths * np.iinfo(np.uint16).max // max(1, int(lengths.max(initial=0)))
    return np.argsort(units.astype(np.uint16), kind="stable")  # which is a radix sort


@dataclass(frozen=True, slots=True, eq=False)
class LengthBatches:
    """Batches of samples of like lengths, by their numbers."""

    samples: Ints  # (n,) by length
    starts: Ints  # (k + 1,) places in `samples` at which classes begin, and n
    sizes: Ints  # (k,) samples of a batch of each class; its last batch may have fewer
    first_batch: Ints  # (k + 1,) batches before each class, and in all

    @classmethod
    def of(cls, lengths: Ints, limit: int) -> LengthBatches:
        """Return the batches whose samples, each padded to the longest of its batch, are at most `limit` long together.

        A longer sample is a batch of its own.
        """
        samples = by_length(lengths)
        highest = np.maximum.accumulate(lengths[samples])  # samples are sorted to within a unit only
        starts, sizes = [len(samples)], []
        while starts[-1]:
            end = starts[-1]
            longest = max(1, int(highest[end - 1]))
            size = max(1, limit // longest)
            num = max(end - int(np.searchsorted(highest[:end], longest * _SPREAD)), _LEAST_BATCHES * size)
            starts.append(max(0, end - -(-num // size) * size))
            sizes.append(size)
        starts.reverse()
        sizes.reverse()
        num_batches = -(-np.diff(starts) // np.array(sizes, np.int64)) if sizes else np.zeros(0, np.int64)
        first_batch = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_batches)])
        return cls(samples, np.array(starts, np.int64), np.array(sizes, np.int64), first_batch)

    def __len__(self) -> int:
        return int(self.first_batch[-1])

    def samples_of(self, batches: Ints, *, seed: int | None, epoch: int) -> tuple[Ints, Ints]:
        """Return (r,) the samples of some batches, batch by batch, and (r,) which of `batches` each is of.

        `seed`: None if nothing is shuffled.
        """
        classes = np.searchsorted(self.first_batch, batches, side="right") - 1
        begin = (batches - self.first_batch[classes]) * self.sizes[classes]  # in the class
        num = np.minimum(self.sizes[classes], np.diff(self.starts)[classes] - begin)
        of_batch = np.repeat(np.arange(len(batches)), num)
        places = ranges(begin, num)
        of_class = classes[of_batch]
        if seed is not None:
            for number in np.unique(of_class).tolist():
                here = of_class == number
                in_class = int(self.starts[number + 1] - self.starts[number])
                places[here] = Permutation(in_class, int(key64(seed, epoch, number, _PURPOSE)))(places[here])
        return self.samples[self.starts[of_class] + places], of_batch
