"""The source of a loader's picks: a plan, or the user's own sampler."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from datapipe.core.checks import positions_of
from datapipe.loader.batch_making import BatchPicks
from datapipe.loader.sampler_checksum import SamplerChecksum
from datapipe.order.plan import BatchSpan, Cursor, Picks, Plan, Rank


class PickSource(Protocol):
    """The source of an iterator's batches. Its code runs in the consumer's thread."""

    @property
    def num_steps(self) -> int: ...

    @property
    def global_batch(self) -> int: ...

    def steps(self, start: Cursor, /) -> Iterator[BatchPicks]: ...

    def check(self, cursor: Cursor, /) -> None:
        """Raise StateError if no pass could begin at `cursor`."""


@dataclass(frozen=True)
class SpanSource:
    """The steps of a plan as ranges of positions, for makers that ask the order themselves."""

    plan: Plan

    @property
    def num_steps(self) -> int:
        return self.plan.num_steps

    @property
    def global_batch(self) -> int:
        return self.plan.global_batch

    def steps(self, start: Cursor) -> Iterator[BatchSpan]:
        for step in range(self.plan.step_at(start), self.plan.num_steps):
            yield self.plan.span(start.epoch, step)

    def check(self, cursor: Cursor) -> None:
        self.plan.check(cursor)


@dataclass(frozen=True)
class SampledSource:
    """Batches from a `sampler` of positions or a `batch_sampler` of lists of them, as torch defines both.

    The sampler decides for this rank alone, as torch's DistributedSampler does. A saved place is a number
    of batches: resuming iterates the sampler again and passes over that many, which is exact if it repeats itself, and a
    StateError if it does not.
    """

    batches: Iterable[object]  # a sampler of positions if batch_size is given, else a batch sampler
    batch_size: int | None
    rank: Rank
    drop_last: bool
    num_samples: int  # of the dataset
    checksum: SamplerChecksum = field(default_factory=SamplerChecksum)

    @property
    def global_batch(self) -> int:
        return (self.batch_size or 1) * self.rank.world_size

    @property
    def num_steps(self) -> int:
        if not isinstance(self.batches, Sized):
            raise TypeError(f"{type(self.batches).__name__} has no __len__, so the loader has none either")
        if self.batch_size is None:
            return len(self.batches)
        full, left = divmod(len(self.batches), self.batch_size)
        return full + (left > 0 and not self.drop_last)

    def steps(self, start: Cursor) -> Iterator[Picks]:
        if start.samples_done:
            self.checksum.resume(start, self.checksum.at(start))
        first, walk = start.samples_done // self.global_batch, self.checksum.begin(self.rank)
        times = np.zeros(self.num_samples, np.int32)  # occurrences of each sample, in this epoch on this rank
        for step, listed in enumerate(self._lists()):
            positions = positions_of(listed, "the sampler")
            positions = np.where(positions < 0, positions + self.num_samples, positions)  # counted from the end, as in a list
            occurrences = _counted(positions, times)
            after = Cursor(start.epoch, (step + 1) * self.global_batch)
            walk.add(positions.tobytes(), after)
            if step >= first:
                yield Picks(
                    step=step,
                    after=after,
                    positions=positions,
                    real=np.ones(len(positions), np.bool_),
                    occurrences=occurrences,
                )

    def check(self, cursor: Cursor) -> None:
        """Accept any place: only iterating the sampler tells how far it goes."""

    def _lists(self) -> Iterator[list[object]]:
        if self.batch_size is None:
            for positions in self.batches:
                yield list(positions)  # type: ignore[call-overload]
            return
        single = iter(self.batches)
        while positions := list(itertools.islice(single, self.batch_size)):
            if len(positions) < self.batch_size and self.drop_last:
                return
            yield positions


def _counted(positions: NDArray[np.int64], times: NDArray[np.int32]) -> NDArray[np.int64] | None:
    """Return (b,) how often each position was given before, and count it in `times`; None if none was."""
    inside = (positions >= 0) & (positions < len(times))
    if not inside.all():  # the index reports what is wrong with them
        return None
    before = times[positions]
    np.add.at(times, positions, 1)
    if not before.any() and (times[positions] == 1).all():
        return None
    counted = before.astype(np.int64)
    seen: dict[int, int] = {}
    for row, position in enumerate(positions.tolist()):
        counted[row] += seen.get(position, 0)
        seen[position] = seen.get(position, 0) + 1
    return counted
