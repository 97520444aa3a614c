"""Where a loader's picks come from: a plan, or the user's own sampler."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from datapipe.errors import OptionError
from datapipe.plan import Cursor, Picks, Rank


class PickSource(Protocol):
    """What an iterator asks for its batches. Its code runs in the consumer's thread."""

    @property
    def num_steps(self) -> int: ...

    @property
    def global_batch(self) -> int: ...

    def steps(self, start: Cursor, /) -> Iterator[Picks]: ...

    def is_at_end(self, cursor: Cursor, /) -> bool: ...


@dataclass(frozen=True)
class SampledSource:
    """Batches from a `sampler` of positions or a `batch_sampler` of lists of them, as torch defines both.

    The sampler decides for this rank alone, as torch's DistributedSampler does. A saved place is a number
    of batches: resuming asks the sampler again and passes over those, so a sampler resumes exactly if it
    repeats itself.
    """

    batches: Iterable[object]  # a sampler of positions where batch_size is given, else a batch sampler
    batch_size: int | None
    rank: Rank
    drop_last: bool

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
        first = start.samples_done // self.global_batch
        for step, positions in enumerate(itertools.islice(self._lists(), first, None), first):
            yield Picks(
                step=step,
                after=Cursor(start.epoch, (step + 1) * self.global_batch),
                positions=_as_positions(positions),
                real=np.ones(len(positions), np.bool_),
            )

    def is_at_end(self, cursor: Cursor) -> bool:
        """Whether nothing is left of the cursor's epoch; a sampler without a length cannot say so."""
        return isinstance(self.batches, Sized) and cursor.samples_done // self.global_batch >= self.num_steps

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


def _as_positions(positions: list[object]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    array = np.asarray(positions)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise OptionError(f"the sampler gave {positions[:3]!r}...; it must give integer positions in the dataset")
    return array.astype(np.int64)
