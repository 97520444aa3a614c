"""Orders of samples of which neighbours share work: a few neighbours at each visit, many visits side by side.

Windows of a video that lie next to each other are decoded together. An order of them that is as good as a full shuffle and shares
that work takes a few samples of a *run* of neighbours at each *visit*, in random order, and deals visits to *lanes*: a batch
takes one sample of each of as many lanes as it has samples, and the next batch of the next lanes. So the samples of a batch come
from different runs, as in a full shuffle, and those of one visit are spread over many batches.

Several datasets are mixed lane by lane: each has its share of the lanes, evenly spread, so that a rank has all samples of a visit
as it has without others. Where the shares are not whole, a few lanes interleave two datasets or more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipe.core.ranges import ranges
from datapipe.order.draws import Draws, Ints, key64
from datapipe.order.sample_order import Permutation
from datapipe.order.sampling import interleaved

_RUN_PURPOSE, _CHOICE_PURPOSE = 0x72756E, 0x6F6E65


class Visit(NamedTuple):
    """Samples of one run that are made together: a part of a lane."""

    epoch: int
    lane: int
    dataset: int  # whose samples: a number among those that are mixed
    turn: int  # the pass over that dataset, as its samples may come again in an epoch; otherwise the epoch
    number: int  # of the visit among those of the pass, in order
    first: int  # which of the visit's samples the lane has: from here
    end: int  # to here


class _Turn(NamedTuple):
    """The visits of a pass over a dataset, in order."""

    run: Ints  # (v,) whose samples
    part: Ints  # (v,) which of its visits
    starts: Ints  # (v + 1,) samples before each visit, and in all


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The samples of a dataset in runs of neighbours, and the visits to them: other ones in every pass, if it is shuffled.

    Without a shuffle a visit is a run, and they come in order.
    """

    starts: Ints  # (r + 1,) samples before each run, and in all; no run is empty
    seed: int
    per_visit: int  # samples of a visit; runs that are no multiple of it have one smaller visit
    is_shuffled: bool = True
    offset: int = 0  # of its samples among those of all datasets; or of its candidates
    choices: Ints | None = None  # (n + 1,) the candidates of each sample, of which each pass draws one; None: samples themselves
    _kept: dict[int, _Turn] = field(default_factory=dict, repr=False)  # this pass and the one before it

    @property
    def largest_visit(self) -> int:
        """The most samples of a visit."""
        most = int(np.diff(self.starts).max(initial=0))
        return min(self.per_visit, most) if self.is_shuffled else most

    def __len__(self) -> int:
        return int(self.starts[-1])

    def visit_starts(self, turn: int) -> Ints:
        """Return (v + 1,) the samples before each visit of a pass, and in all."""
        return self._visits(turn).starts if self.is_shuffled else self.starts

    def samples(self, turn: int, number: int) -> Ints:
        """Return the samples of a visit of a pass, in order; where they are drawn, the candidates."""
        samples = self._samples(turn, number)
        if self.choices is not None:
            first, num = self.choices[samples], np.diff(self.choices)[samples]
            drawn = Draws(self.seed, turn, samples).uniform(_CHOICE_PURPOSE, 1)[:, 0]
            samples = first + np.minimum((drawn * num).astype(np.int64), num - 1)
        return self.offset + samples

    def _samples(self, turn: int, number: int) -> Ints:
        if not self.is_shuffled:
            return np.arange(self.starts[number], self.starts[number + 1], dtype=np.int64)
        visits = self._visits(turn)
        run, part = int(visits.run[number]), int(visits.part[number])
        of_run = range(int(self.starts[run]), int(self.starts[run + 1]))
        key = int(key64(self.seed, turn, run, _RUN_PURPOSE))
        return _some_of(of_run, part * self.per_visit, (part + 1) * self.per_visit, key)

    def _visits(self, turn: int) -> _Turn:
        found = self._kept.get(turn)
        if found is None:
            found = self._made(turn)
            for old in [*self._kept][:-1]:
                self._kept.pop(old, None)
            self._kept[turn] = found
        return found

    def _made(self, turn: int) -> _Turn:
        per_run = -(-np.diff(self.starts) // self.per_visit)
        run = np.repeat(np.arange(len(per_run)), per_run)
        part = ranges(0, per_run)
        mixed = Permutation(len(run), int(key64(self.seed, turn)))(np.arange(len(run), dtype=np.int64))
        run, part = run[mixed], part[mixed]
        sizes = np.minimum(self.per_visit, np.diff(self.starts)[run] - part * self.per_visit)
        return _Turn(run, part, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))


class _Lanes(NamedTuple):
    """The lanes of an epoch. The samples of the datasets, one after the other, are a sequence that is divided among them."""

    of_slot: Ints  # (l,) the lane of each position, modulo the number of lanes
    starts: Ints  # (l + 1,) where lanes begin in the sequence
    dataset: Ints  # (l,) the first dataset of each lane
    is_mixed: NDArray[np.bool_]  # (l,) whether a lane has samples of several


@dataclass(frozen=True, slots=True, eq=False)
class VisitOrder:
    """The samples of one dataset, or of several that are mixed, visit by visit; an `order.Order`.

    Which samples a visit has, and in which lane it lies, is arithmetic over the visits of a pass: nothing depends on ranks, but
    `num_lanes` is a multiple of the samples of a step over all of them, so that each rank has lanes of its own.
    """

    datasets: Sequence[Runs]
    num_lanes: int
    counts: tuple[int, ...] | None = None  # samples of each dataset in an epoch; None: all of the only one

    @property
    def largest_visit(self) -> int:
        """The most samples of a visit."""
        return max(one.largest_visit for one in self.datasets)

    @property
    def is_shuffled(self) -> bool:
        return self.datasets[0].is_shuffled

    @property
    def kind(self) -> str:
        visits = f"visits of {self.datasets[0].per_visit} in {self.num_lanes} lanes"
        if self.counts is None:
            return visits if self.is_shuffled else "sequential"
        counts = ":".join(map(str, self.counts))
        return f"mixed {counts}, {visits}" if self.is_shuffled else f"mixed in stored order {counts}"

    def __len__(self) -> int:
        return sum(self._counts)

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        located = zip(*self._located(epoch, positions), strict=True)
        found = ((self.datasets[visit.dataset].samples(visit.turn, visit.number), place) for visit, place in located)
        return np.fromiter((samples[place] for samples, place in found), np.int64, len(positions))

    def visits_at(self, epoch: int, positions: Ints) -> list[Visit]:
        """Return the visit that each of these positions belongs to."""
        return self._located(epoch, positions)[0]

    def samples(self, visit: Visit) -> Ints:
        """Return the samples of a visit, in the order of its lane."""
        return self.datasets[visit.dataset].samples(visit.turn, visit.number)[visit.first : visit.end]

    def occurrence(self, visit: Visit) -> int:
        """Return how often the samples of a visit came before, over all epochs; 0 where they come once in each."""
        return 0 if self.counts is None else visit.turn

    @property
    def _counts(self) -> tuple[int, ...]:
        return (len(self.datasets[0]),) if self.counts is None else self.counts

    def _located(self, epoch: int, positions: Ints) -> tuple[list[Visit], list[int]]:
        """Return the visit of each position, and its place in it, of all of its samples."""
        counts, lanes = self._counts, _lanes_of(self)
        ends = np.cumsum(np.array([0, *counts], np.int64))  # of datasets in the sequence
        slots = positions % self.num_lanes
        lane, within = lanes.of_slot[slots], positions // self.num_lanes
        begin, end = lanes.starts[lane], lanes.starts[lane + 1]
        dataset, place = lanes.dataset[lane], begin + within
        for one in np.unique(lane[lanes.is_mixed[lane]]).tolist():
            here = np.flatnonzero(lane == one)
            low, high = np.maximum(lanes.starts[one], ends[:-1]), np.minimum(lanes.starts[one + 1], ends[1:])
            dataset[here], number = interleaved(np.maximum(high - low, 0).tolist(), within[here])
            place[here] = low[dataset[here]] + number
        # from the sequence of this epoch to the passes over each dataset, which go on where the epoch before stopped
        sizes = np.array([max(1, len(one)) for one in self.datasets], np.int64)[dataset]
        shift = epoch * np.array(counts, np.int64)[dataset] - ends[dataset]
        turn, at = np.divmod(place + shift, sizes)
        shift -= turn * sizes
        low, high = np.maximum(begin, ends[dataset]) + shift, np.minimum(end, ends[dataset + 1]) + shift
        number, start, stop = (np.empty(len(positions), np.int64) for _ in range(3))
        for which, when in {*zip(dataset.tolist(), turn.tolist(), strict=True)}:
            here = (dataset == which) & (turn == when)
            starts = self.datasets[which].visit_starts(when)
            number[here] = found = np.searchsorted(starts, at[here], side="right") - 1
            start[here], stop[here] = starts[found], starts[found + 1]
        first, last = np.maximum(start, low) - start, np.minimum(stop, high) - start
        columns = (slots, dataset, turn, number, first, last)
        visits = [Visit(epoch, *values) for values in zip(*(one.tolist() for one in columns), strict=True)]
        return visits, (at - start).tolist()


@functools.lru_cache(maxsize=4)  # an order is its own key, by identity
def _lanes_of(order: VisitOrder) -> _Lanes:
    num, ends = order.num_lanes, np.cumsum(order._counts)
    middles = (2 * np.arange(num, dtype=np.int64) + 1) * len(order) // (2 * num)
    owner = np.searchsorted(ends, middles, side="right")  # the dataset that has the middle of each lane
    owned = np.bincount(np.minimum(owner, len(ends) - 1), minlength=len(ends))
    which, number = interleaved(owned.tolist(), np.arange(num, dtype=np.int64))
    of_slot = (np.cumsum(owned) - owned)[which] + number
    each, longer = divmod(len(order), num)  # the first slots have one more, if they cannot be equal
    sizes = np.empty(num, np.int64)
    sizes[of_slot] = each + (np.arange(num) < longer)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    first, last = (np.searchsorted(ends, places, side="right") for places in (starts[:-1], starts[1:] - 1))
    return _Lanes(of_slot, starts, np.minimum(first, len(ends) - 1), (sizes > 1) & (first != last))


@functools.lru_cache(maxsize=1 << 14)  # a visit is asked for once for each of its samples
def _some_of(run: range, begin: int, end: int, key: int) -> Ints:
    """Return some of the samples of a run, of all of them in random order."""
    return run.start + Permutation(len(run), key)(np.arange(begin, min(end, len(run)), dtype=np.int64))
