"""Divide an epoch into batches, on every rank, from any point of any epoch.

A *step* is one batch on each of `world_size` ranks: `batch_size * world_size` consecutive positions
of the epoch's order, of which rank r takes the r-th run of `batch_size`. The place in an epoch is one
number, `Cursor.samples_done`, counted over all ranks, so that a state saved on two ranks resumes on
four as long as the step covers as many samples. Everything here is pure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import OptionError, StateError
from datapipe.order.sample_order import ABSENT, Order

MAX_SAMPLES = 1 << 40  # of an epoch, and of a batch
_MAX_FILLED = 1 << 24  # samples to which a batch is filled up, whatever there are
_ASKED_AT_ONCE = 4096  # positions of an epoch


class Tail(enum.Enum):
    """How to treat the samples left over after the last full step."""

    PAD = "pad"  # divided evenly; up to world_size - 1 samples are repeated so that ranks have equally many
    DROP = "drop"  # left out of this epoch
    MASK = "mask"  # a full step, filled with repeats that a boolean mask marks as such


@dataclass(frozen=True, slots=True)
class Rank:
    """This process's rank among those that share an epoch."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise OptionError(f"rank {self.rank} is not among world_size {self.world_size} ranks: 0 <= rank < world_size")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in training: this many samples of this epoch are done, counted over all ranks."""

    epoch: int = 0
    samples_done: int = 0


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """One rank's batch as a range of positions of the epoch, before the order is applied."""

    step: int  # of the epoch, from 0
    after: Cursor  # the place in the epoch once this step is done
    start: int  # first position of the epoch
    stop: int  # end of the range; positions from `num_samples` on are repeats and count from 0 again
    num_samples: int  # of the epoch

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def num_real(self) -> int:
        """The number of leading samples that are not repeats."""
        return max(0, min(self.stop, self.num_samples) - self.start)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the (start, stop) ranges of positions below `num_samples` that the span consists of, in order."""
        start = self.start
        while start < self.stop:
            first = start % self.num_samples
            length = min(self.stop - start, self.num_samples - first)
            yield first, first + length
            start += length


@dataclass(frozen=True, slots=True)
class Picks:
    """The samples of one rank's batch."""

    step: int  # of the epoch, from 0
    after: Cursor  # the place in the epoch once this step is done
    positions: NDArray[np.int64]  # (b,) positions in the dataset
    real: NDArray[np.bool_]  # (b,) False for a sample that is a repeat and pads the tail
    occurrences: NDArray[np.int64] | None = None  # (b,) keeps draws of a sample that comes again apart; None: all 0

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class Plan:
    """An order divided into steps. All ranks share the `num_samples` of an epoch."""

    order: Order
    batch_size: int  # per rank
    rank: Rank = Rank()
    tail: Tail = Tail.PAD

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise OptionError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.tail is Tail.MASK and self.batch_size > max(_MAX_FILLED, len(self.order)):
            raise OptionError(
                f"batch_size is {self.batch_size}, to which tail='mask' fills {len(self.order)} samples up; pass fewer"
            )

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self.batch_size * self.rank.world_size

    @property
    def num_steps(self) -> int:
        """Steps per epoch: the same on every rank."""
        full, left = divmod(len(self.order), self.global_batch)
        return full + (left > 0 and self.tail is not Tail.DROP)

    def steps(self, start: Cursor) -> Iterator[Picks]:
        """Yield the batches of this rank from `start` to the end of its epoch.

        Raises StateError if `start` does not lie between two steps of this plan.
        """
        several = max(1, _ASKED_AT_ONCE // self.batch_size)
        for first in range(self.step_at(start), self.num_steps, several):
            steps = range(first, min(first + several, self.num_steps))
            yield from self._picks([self.span(start.epoch, step) for step in steps])

    def spans(self, start: Cursor) -> Iterator[BatchSpan]:
        """Yield the same batches as ranges of positions, for those who ask the order themselves."""
        for step in range(self.step_at(start), self.num_steps):
            yield self.span(start.epoch, step)

    def step_at(self, cursor: Cursor) -> int:
        """Return the number of the step that begins at `cursor`. Raises StateError if none does."""
        step, rest = divmod(cursor.samples_done, self.global_batch)
        if cursor.samples_done >= len(self.order) > 0:
            return self.num_steps
        if rest:
            raise StateError(
                f"{cursor.samples_done} samples are done, which is not a multiple of batch_size x world_size "
                f"= {self.batch_size} x {self.rank.world_size}; resume with the values the state was saved under, "
                "or others whose product divides what is done"
            )
        return step

    def picks_of(self, span: BatchSpan) -> Picks:
        """Return the samples of a batch."""
        return self._picks([span])[0]

    def _picks(self, spans: list[BatchSpan]) -> list[Picks]:
        """Return the samples of batches of one epoch. The order is asked once for all, which costs hardly more than for one.

        A list, as a generator that is dropped before its end would be entered once more, and swallow a Ctrl-C that comes there.
        """
        epoch, num_samples = spans[0].after.epoch, spans[0].num_samples
        mine = np.concatenate([span.start + np.arange(len(span), dtype=np.int64) for span in spans])
        filling = getattr(self.order, "fills", None)  # one that fills its own steps up, also the last
        places = mine % num_samples if filling is None else mine
        positions, real = self.order(epoch, places), mine < num_samples
        occurring = getattr(self.order, "occurrences", None)  # isinstance of a protocol would take longer than all the rest
        occurrences = None if occurring is None else occurring(epoch, places)
        if filling is not None:
            real &= ~filling(epoch, places)
        first, found = 0, []
        for span in spans:
            rows = slice(first, first + len(span))
            first = rows.stop
            taken: slice | NDArray[np.int64] = rows
            if filling is not None:
                taken = rows.start + np.flatnonzero(positions[rows] != ABSENT)
            repeats = None if occurrences is None else occurrences[taken]
            found.append(Picks(span.step, span.after, positions[taken], real[taken], repeats))
        return found

    def span(self, epoch: int, step: int) -> BatchSpan:
        """Return one batch as a range of positions of the epoch."""
        num_samples = len(self.order)
        first = step * self.global_batch
        left = num_samples - first
        share = self.batch_size
        if left < self.global_batch and self.tail is Tail.PAD:
            share = -(-left // self.rank.world_size)
        start = first + self.rank.rank * share
        after = Cursor(epoch, min(first + self.global_batch, num_samples))
        return BatchSpan(step=step, after=after, start=start, stop=start + share, num_samples=num_samples)
