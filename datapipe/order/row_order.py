"""Orders of the rows of a table, given as runs: consecutive parts of shuffled windows that make up a batch.

A batch of a table has tens of thousands of rows, so only the permutations of windows are computed per row.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from datapipe.errors import OptionError
from datapipe.order.draws import Ints, key64
from datapipe.order.row_permutation import RowPermutation
from datapipe.order.sample_order import Permutation

MAX_LANES = 16
PLACE_NBYTES = 8  # kept for each row of a window besides its values: its shuffled place
_GROUPS_PER_LANE = 4  # at least, as a row group that two lanes share is read twice


@dataclass(frozen=True, slots=True)
class GroupPart:
    """Consecutive rows of one row group, and their place in a window."""

    group: int  # number in the table
    start: int  # row of the group
    stop: int
    place: int  # row of the window


@dataclass(frozen=True, slots=True)
class ShuffleWindow:
    """Rows that are shuffled with each other: consecutive places of an epoch's sequence of row groups."""

    epoch: int
    lane: int
    number: int  # in the lane
    first: int  # place in the sequence
    end: int

    def __len__(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows of a batch: the part from `start` to `stop` of a window's rows in shuffled order."""

    window: ShuffleWindow
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Every epoch in stored order; a window is a row group. Methods: as those of `WindowedRows`."""

    starts: Ints  # (g + 1,) rows of the table at which the row groups begin, and the number of rows
    kind: str = "sequential"

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def max_window(self) -> int:
        return int(np.diff(self.starts).max())

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        return positions

    def runs(self, epoch: int, start: int, stop: int) -> Iterator[RowRun]:
        while start < stop:
            group = bisect.bisect_right(self.starts, start) - 1
            window = self._window(epoch, group)
            end = min(stop, window.end)
            yield RowRun(window, start - window.first, end - window.first)
            start = end

    def parts(self, window: ShuffleWindow) -> list[GroupPart]:
        return [GroupPart(window.number, 0, len(window), 0)]

    def shuffled(self, window: ShuffleWindow) -> None:
        return None

    def following(self, window: ShuffleWindow) -> ShuffleWindow | None:
        return self._window(window.epoch, window.number + 1) if window.end < len(self) else None

    def _window(self, epoch: int, group: int) -> ShuffleWindow:
        return ShuffleWindow(epoch, 0, group, int(self.starts[group]), int(self.starts[group + 1]))


@dataclass(frozen=True, slots=True)
class ShuffledRows:
    """A full shuffle of rows that may be read in any order, another one every epoch; an `order.Order`."""

    num_samples: int
    seed: int
    kind: str = "shuffled rows"

    def __len__(self) -> int:
        return self.num_samples

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        return RowPermutation(self.num_samples, int(key64(self.seed, epoch))).at(positions)


@dataclass(frozen=True, slots=True, eq=False)
class WindowedRows:
    """A shuffle for tables that are read a row group at a time: few row groups are in use at once.

    The row groups of an epoch are put in random order, and their rows are dealt to *lanes*: stretches of that sequence, all
    equally long. Every step takes an equal share of each lane, and a lane is shuffled in windows of `groups_per_window` whole row
    groups (fewer at its ends). Lanes and windows depend on the rows per step over all ranks, not on the number of ranks, so
    resuming on another number of ranks changes nothing, and if the number of ranks divides that of lanes, each reads row groups
    of its own. The rows that fill no step come last, in a lane of their own.
    """

    starts: Ints  # (g + 1,) rows of the table at which the row groups begin, and the number of rows
    seed: int
    global_batch: int
    num_lanes: int
    groups_per_window: int

    def __post_init__(self) -> None:
        if self.global_batch % self.num_lanes:
            raise OptionError(f"{self.num_lanes} lanes do not divide the {self.global_batch} rows of a step")

    @classmethod
    def within(cls, starts: Ints, *, seed: int, global_batch: int, row_nbytes: int, window_nbytes: int) -> WindowedRows:
        """Return an order of which two windows in each lane take at most `window_nbytes`, or one row group in one lane.

        `row_nbytes`: size of a row in memory. Uses as many lanes as possible, then windows as large as possible.
        """
        num_groups = max(1, len(starts) - 1)
        group_nbytes = max(1, int(starts[-1]) * row_nbytes // num_groups)
        most = min(MAX_LANES, num_groups // _GROUPS_PER_LANE, window_nbytes // (2 * group_nbytes))
        lanes = max(lanes for lanes in range(1, max(1, most) + 1) if global_batch % lanes == 0)
        per_window = min(window_nbytes // (2 * group_nbytes * lanes), -(-num_groups // lanes))
        return cls(starts, seed, global_batch, lanes, max(1, per_window))

    @property
    def kind(self) -> str:
        """The name in saved states, with lanes and windows: under others the same place in an epoch is another one."""
        return f"row windows of {self.groups_per_window} groups in {self.num_lanes} lanes"

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def max_window(self) -> int:
        """The largest number of rows of a window."""
        return min(len(self), int(np.diff(self.starts).max()) * self.groups_per_window)

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        """Return the rows of the table at these positions of the epoch: run by run, over stretches of consecutive positions."""
        found = np.empty(len(positions), np.int64)
        edges = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
        for begin, end in itertools.pairwise(edges):
            if begin == end:
                continue
            place, start = begin, int(positions[begin])
            for run in self.runs(epoch, start, start + end - begin):
                rows = np.empty(len(run.window), np.int64)
                for piece in self.parts(run.window):
                    first, num = int(self.starts[piece.group]) + piece.start, piece.stop - piece.start
                    rows[piece.place : piece.place + num] = np.arange(first, first + num)
                found[place : place + len(run)] = rows[self.shuffled(run.window)[run.start : run.stop]]
                place += len(run)
        return found

    def runs(self, epoch: int, start: int, stop: int) -> Iterator[RowRun]:
        """Yield the runs that hold these positions of the epoch, in order; 0 <= start <= stop <= len."""
        for lane, first, end in self._stretches(start, stop):
            while first < end:
                window = self._window_at(epoch, lane, first)
                part = min(end, window.end)
                yield RowRun(window, first - window.first, part - window.first)
                first = part

    def parts(self, window: ShuffleWindow) -> list[GroupPart]:
        """Return the parts of row groups that make up a window, in the order of its places."""
        groups, ends = _sequence(self, window.epoch)
        found, place = [], window.first
        number = int(np.searchsorted(ends, place, side="right"))
        while place < window.end:
            group, end = int(groups[number]), min(int(ends[number]), window.end)
            begin = int(ends[number]) - int(self.starts[group + 1] - self.starts[group])
            if end > place:
                found.append(GroupPart(group, place - begin, end - begin, place - window.first))
            place, number = end, number + 1
        return found

    def shuffled(self, window: ShuffleWindow) -> Ints:
        """Return (len(window),) the window's row at each shuffled place; in `StoredRows` None, as it is not shuffled."""
        key = int(key64(self.seed, window.epoch, window.lane, window.number))
        return RowPermutation(len(window), key)(0, len(window))

    def following(self, window: ShuffleWindow) -> ShuffleWindow | None:
        """Return the next window in the same lane; None after the last."""
        _, end = self._extent(window.lane)
        return self._window_at(window.epoch, window.lane, window.end) if window.end < end else None

    # -- lanes ----------------------------------------------------------------------------------

    @property
    def _share(self) -> int:
        return self.global_batch // self.num_lanes

    @property
    def _num_steps(self) -> int:
        return len(self) // self.global_batch

    def _extent(self, lane: int) -> tuple[int, int]:
        """Return the places of a lane; the lane of the rows that fill no step comes last."""
        length = self._num_steps * self._share
        return lane * length, len(self) if lane == self.num_lanes else (lane + 1) * length

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (lane, first place, end) of consecutive places that hold these positions, in order."""
        share, in_steps = self._share, self._num_steps * self.global_batch
        while start < min(stop, in_steps):
            step, within = divmod(start, self.global_batch)
            lane, offset = divmod(within, share)
            length = min(share - offset, stop - start)
            first = (lane * self._num_steps + step) * share + offset
            yield lane, first, first + length
            start += length
        if start < stop:
            yield self.num_lanes, start, stop

    # -- windows --------------------------------------------------------------------------------

    def _window_at(self, epoch: int, lane: int, place: int) -> ShuffleWindow:
        """Return the window of the lane that holds `place`.

        Windows end with row groups, those of each lane one row group later than those of the lane before it, so that lanes
        need new row groups at different steps.
        """
        lane_first, lane_end = self._extent(lane)
        _, ends = _sequence(self, epoch)
        size = self.groups_per_window
        lag = lane % size
        opening = int(np.searchsorted(ends, lane_first, side="right"))  # the row group in which the lane begins
        number = (int(np.searchsorted(ends, place, side="right")) - opening + lag) // size
        before, last = opening - lag + number * size - 1, opening - lag + (number + 1) * size - 1
        first = lane_first if before < opening else max(lane_first, int(ends[before]))
        end = min(lane_end, int(ends[min(last, len(ends) - 1)]))
        return ShuffleWindow(epoch, lane, number, first, end)


@functools.lru_cache(maxsize=8)  # an order is its own key, by identity
def _sequence(order: WindowedRows, epoch: int) -> tuple[Ints, Ints]:
    """Return the row groups in the epoch's order, and the places at which they end."""
    num_groups = len(order.starts) - 1
    groups = Permutation(num_groups, int(key64(order.seed, epoch)))(np.arange(num_groups, dtype=np.int64))
    return groups, np.cumsum(np.diff(order.starts)[groups])


RunOrder = StoredRows | WindowedRows  # orders that are asked for runs


@dataclass(frozen=True, slots=True, eq=False)
class FirstWindowed:
    """The first epoch in windows, while rows are being kept; a full shuffle in every later one. An `order.Order`."""

    first: WindowedRows
    later: ShuffledRows

    @property
    def kind(self) -> str:
        """Names the lanes and windows of the first epoch too."""
        return f"{self.first.kind}, then {self.later.kind}"

    def __len__(self) -> int:
        return len(self.later)

    def __call__(self, epoch: int, positions: Ints, /) -> Ints:
        return (self.later if epoch else self.first)(epoch, positions)
