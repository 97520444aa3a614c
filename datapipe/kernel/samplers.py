"""Samplers: datapipe's own, by weight, and the user's, whose batches a loader takes and checks to repeat themselves."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.core.checks import positions_of, whole_number
from datapipe.errors import OptionError, StateError
from datapipe.order.plan import MAX_SAMPLES, Cursor, Picks, Rank
from datapipe.order.sampling import WeightedOrder, checked_weights

_MAX_KNOWN = 4096  # places after batches that are in the making
_MAX_GIVEN = 64  # batches whose checksums are calculated at once


@dataclass
class WeightedSampler:
    """A loader's `sampler` that draws samples with replacement, each as often as its weight says.

    >>> loader = datapipe.DataLoader("shards", batch_size=64, sampler=datapipe.WeightedSampler(weights))

    The arithmetic form of torch's `WeightedRandomSampler`: every rank draws its part of one epoch, and a saved state
    resumes on any number of ranks. `weights`: (n,) for each sample of the dataset in its order. `num_samples`: length of an
    epoch over all ranks; None: the number of weights.
    """

    weights: NDArray[np.float64] | Sequence[float]
    num_samples: int | None = None

    def __post_init__(self) -> None:
        self.update_weights(self.weights)
        if self.num_samples is not None:
            self.num_samples = whole_number(self.num_samples, "num_samples", least=1, most=MAX_SAMPLES)

    def update_weights(self, weights: NDArray[np.float64] | Sequence[float]) -> None:
        """Draw by these weights from the next pass on. Raises OptionError unless there is one for each sample.

        States refer to the weights in use: a state resumes in a loader that has the same.
        """
        num = len(self.weights) if hasattr(self, "_cumulated") else np.size(np.asarray(weights, object))
        self.weights = checked_weights(weights, num=num, what="sample")
        self._cumulated = np.cumsum(self.weights)

    def __len__(self) -> int:
        return len(self.weights) if self.num_samples is None else self.num_samples

    def order(self, seed: int) -> WeightedOrder:
        """Return the order of a pass by the current weights."""
        return WeightedOrder(self._cumulated, len(self), seed)

    def check_fits(self, num_samples: int, where: str) -> None:
        """Raise OptionError unless there is a weight for each sample of the data, which lies at `where`."""
        if len(self.weights) != num_samples:
            found = f"{where}: has {num_samples} samples, and the sampler {len(self.weights)} weights"
            raise OptionError(f"{found}; pass one weight for each sample")


class SamplerChecksum:
    """The checksums of a loader's sampler: what a saved state keeps, and the comparison with the state loaded last."""

    def __init__(self) -> None:
        self._resumed = Cursor(), ""
        self._known: dict[Cursor, str] = {}
        # what passes gave that is not hashed yet: many at once take a quarter of the time
        self._given: list[tuple[Any, str, bytes | tuple[int, ...], Cursor]] = []

    def resume(self, place: Cursor, checksum: str) -> None:
        """Prepare for a pass from that place, up to which the sampler must give positions with this checksum."""
        self._settle()
        self._resumed = place, checksum
        self._known.clear()

    def begin(self, rank: Rank) -> Callable[[bytes | tuple[int, ...], Cursor], None]:
        """Begin a pass over the sampler. Call the result with the positions of each batch in turn, and the place after it."""
        running, name = hashlib.sha256(), f"{rank.rank}/{rank.world_size}"

        def add(given: bytes | tuple[int, ...], after: Cursor) -> None:
            self._given.append((running, name, given, after))
            if len(self._given) >= _MAX_GIVEN or after.samples_done == self._resumed[0].samples_done:
                self._settle()

        return add

    def __getstate__(self) -> dict[str, Any]:
        self._settle()  # what is not hashed yet cannot be pickled
        return vars(self)

    def _settle(self) -> None:
        """Calculate the checksums of all that was given. Raises StateError as `_note` does."""
        given, self._given = self._given, []
        for running, name, positions, after in given:
            running.update(positions if isinstance(positions, bytes) else repr(list(positions)).encode())
            self._note(after, f"{name} {running.hexdigest()[:16]}")

    def at(self, place: Cursor) -> str:
        """Return the checksum that a state saved there keeps; "" if it is not known."""
        self._settle()
        resumed, checksum = self._resumed
        return self._known.get(place, checksum if place == resumed else "")

    def _note(self, place: Cursor, checksum: str) -> None:
        """Record a checksum. Raises StateError at the place to continue from if it differs from the saved one.

        States of other ranks, whose samplers give them other positions, are not compared.
        """
        resumed, expected = self._resumed
        if place == resumed and checksum != expected and expected.partition(" ")[0] == checksum.partition(" ")[0]:
            raise StateError(
                "the sampler does not give the positions that it gave before the state was saved, or before Ctrl-C "
                f"(epoch {place.epoch}), so the rest of the epoch is unknown; if set_epoch seeds it, as DistributedSampler's, "
                f"call loader.set_epoch({place.epoch}) before this pass; else use a sampler that does so, "
                "datapipe.WeightedSampler, or shuffle=True on dataset.select(...)"
            )
        self._known[place] = checksum
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]


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
        first, add = self.step_at(start), self.checksum.begin(self.rank)
        times = np.zeros(self.num_samples, np.int32)  # occurrences of each sample, in this epoch on this rank
        for step, listed in enumerate(self._lists()):
            positions = positions_of(listed, "the sampler")
            positions = np.where(positions < 0, positions + self.num_samples, positions)  # counted from the end, as in a list
            occurrences = _counted(positions, times)
            after = Cursor(start.epoch, (step + 1) * self.global_batch)
            add(positions.tobytes(), after)
            if step >= first:
                yield Picks(
                    step=step,
                    after=after,
                    positions=positions,
                    real=np.ones(len(positions), np.bool_),
                    occurrences=occurrences,
                )

    def step_at(self, cursor: Cursor) -> int:
        """Return the number of the step that begins at `cursor`. Any place will do: only the sampler knows how far it goes."""
        return cursor.samples_done // self.global_batch

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
