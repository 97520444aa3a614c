"""An order of samples of which neighbours share work: a few neighbours at each visit, many visits side by side.

Windows of a video that lie next to each other are decoded together. An order of them that is as good as a full shuffle and shares
that work takes a few samples of a *run* of neighbours at each *visit*, in random order, and deals visits to *lanes*: a batch
takes one sample of each of as many lanes as it has samples, and the next batch of the next lanes. So the samples of a batch come
from different runs, as in a full shuffle, and those of one visit are spread over many batches.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipe.order.draws import key64
from datapipe.order.sample_order import Permutation

Ints = NDArray[np.int64]
_RUN_PURPOSE = 0x72756E


class Visit(NamedTuple):
    """Samples of one run that are made together: a part of a lane."""

    epoch: int
    lane: int
    number: int  # of the visit among those of the epoch, in order
    first: int  # which of the visit's samples the lane has: from here
    end: int  # to here


class _Epoch(NamedTuple):
    """The visits of an epoch, in order."""

    run: Ints  # (v,) whose samples
    part: Ints  # (v,) which of its visits
    starts: Ints  # (v + 1,) samples before each visit, and in all


@dataclass(frozen=True, slots=True, eq=False)
class VisitOrder:
    """A shuffle of samples in runs, another one every epoch; an `order.Order`.

    Which samples a visit has, and in which lane it lies, is arithmetic over the visits of an epoch: nothing depends on ranks, but
    `num_lanes` is a multiple of the samples of a step over all of them, so that each rank has lanes of its own.
    """

    run_starts: Ints  # (r + 1,) samples before each run, and in all; no run is empty
    seed: int
    per_visit: int  # samples of a visit; runs that are no multiple of it have one smaller visit
    num_lanes: int

    @property
    def largest_visit(self) -> int:
        """The most samples of a visit."""
        return min(self.per_visit, int(np.diff(self.run_starts).max(initial=0)))

    @property
    def kind(self) -> str:
        return f"visits of {self.per_visit} in {self.num_lanes} lanes"

    def __len__(self) -> int:
        return int(self.run_starts[-1])

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        starts, at = _visits(self, epoch).starts, self._listed(positions)[1]
        numbers = np.searchsorted(starts, at, side="right") - 1
        places = zip(numbers.tolist(), (at - starts[numbers]).tolist(), strict=True)
        return np.fromiter((self._samples(epoch, number)[place] for number, place in places), np.int64, len(positions))

    def visits_at(self, epoch: int, positions: Ints) -> list[Visit]:
        """Return the visit that each of these positions belongs to."""
        starts = _visits(self, epoch).starts
        lanes, at = self._listed(positions)
        numbers = np.searchsorted(starts, at, side="right") - 1
        lane_begin, lane_end = self._lane_start(lanes), self._lane_start(lanes + 1)
        first = np.maximum(starts[numbers], lane_begin) - starts[numbers]
        end = np.minimum(starts[numbers + 1], lane_end) - starts[numbers]
        columns = (lanes.tolist(), numbers.tolist(), first.tolist(), end.tolist())
        return [Visit(epoch, *values) for values in zip(*columns, strict=True)]

    def samples(self, visit: Visit) -> Ints:
        """Return the samples of a visit, in the order of its lane."""
        return self._samples(visit.epoch, visit.number)[visit.first : visit.end]

    def _samples(self, epoch: int, number: int) -> Ints:
        visits = _visits(self, epoch)
        return _samples_of(self, epoch, int(visits.run[number]), int(visits.part[number]))

    def _listed(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return the lane of each position, and its place in the sequence of all lanes, one after the other."""
        lanes = positions % self.num_lanes
        return lanes, self._lane_start(lanes) + positions // self.num_lanes

    def _lane_start(self, lanes: Ints) -> Ints:
        """Return where lanes begin in the sequence: the first ones are longer by one, if they cannot be equal."""
        each, longer = divmod(len(self), self.num_lanes)
        return lanes * each + np.minimum(lanes, longer)


@dataclass(frozen=True, slots=True, eq=False)
class RunsInOrder:
    """Every epoch in the dataset's own order; a visit is a run. Methods: as those of `VisitOrder`."""

    run_starts: Ints
    kind: str = "sequential"

    @property
    def largest_visit(self) -> int:
        return int(np.diff(self.run_starts).max(initial=0))

    def __len__(self) -> int:
        return int(self.run_starts[-1])

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        return positions

    def visits_at(self, epoch: int, positions: Ints) -> list[Visit]:
        runs = np.searchsorted(self.run_starts, positions, side="right") - 1
        sizes = self.run_starts[runs + 1] - self.run_starts[runs]
        return [Visit(epoch, 0, run, 0, size) for run, size in zip(runs.tolist(), sizes.tolist(), strict=True)]

    def samples(self, visit: Visit) -> Ints:
        first = int(self.run_starts[visit.number])
        return np.arange(first + visit.first, first + visit.end, dtype=np.int64)


@functools.lru_cache(maxsize=4)  # this epoch's and the next one's; an order is its own key, by identity
def _visits(order: VisitOrder, epoch: int) -> _Epoch:
    per_run = -(-np.diff(order.run_starts) // order.per_visit)
    run = np.repeat(np.arange(len(per_run)), per_run)
    part = np.arange(len(run)) - np.repeat(np.cumsum(per_run) - per_run, per_run)
    mixed = Permutation(len(run), int(key64(order.seed, epoch)))(np.arange(len(run), dtype=np.int64))
    run, part = run[mixed], part[mixed]
    sizes = np.minimum(order.per_visit, np.diff(order.run_starts)[run] - part * order.per_visit)
    return _Epoch(run, part, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))


@functools.lru_cache(maxsize=1 << 14)  # a visit is asked for once for each of its samples
def _samples_of(order: VisitOrder, epoch: int, run: int, part: int) -> Ints:
    """Return the samples of a visit: the runs' samples in random order, divided among its visits."""
    first, size = int(order.run_starts[run]), int(order.run_starts[run + 1] - order.run_starts[run])
    places = np.arange(part * order.per_visit, min((part + 1) * order.per_visit, size), dtype=np.int64)
    return first + Permutation(size, int(key64(order.seed, epoch, run, _RUN_PURPOSE)))(places)
