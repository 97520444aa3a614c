"""Find by measurement whether recording pays, where leaving it out changes no pixel.

The training process decides for each batch, as it asks workers for it, by the CPU time of the batches that have come, made in
both ways in turn. So what was learned holds for all workers, for the passes that follow, and for later loaders of the Dataset.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from datapipe.deferral.requests import BatchRequest

MIN_SAMPLES = 64  # made in each way before the cheaper way is taken
MOST_SAMPLES = 256  # made in each way before it is taken although the costs differ by less than their errors
TRIED_AGAIN = 64  # one batch in so many is made in the other way, so that the costs stay known


class Cost(NamedTuple):
    """The cost of a batch, in the process that made it."""

    is_plain: bool  # whether it was made without recording
    is_exact: bool  # whether it has the pixels that the other way would give
    num_samples: int
    seconds: float | None = None  # of CPU, of fetch and collation, without `setup`; None: the process was warming up
    has_images: bool = True  # whether there was an image to record, as far as is known
    is_watched: bool = False  # whether images have to be traced where nothing is recorded
    setup: float = 0.0  # seconds of CPU for what a process needs once, in order to record


@dataclass(slots=True)
class _Way:
    num_asked: int = 0  # batches
    num_measured: int = 0  # samples
    num_samples: int = 0
    seconds: float = 0.0
    num_batches: int = 0  # measured
    squares: float = 0.0  # of seconds per sample, summed over the batches measured

    def add(self, cost: Cost) -> None:
        self.num_samples += cost.num_samples
        if cost.seconds is not None and cost.num_samples:
            self.num_measured += cost.num_samples
            self.seconds += cost.seconds
            self.num_batches += 1
            self.squares += (cost.seconds / cost.num_samples) ** 2

    @property
    def mean(self) -> float:
        """Seconds of CPU per sample."""
        return self.seconds / self.num_measured

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite for one batch."""
        if self.num_batches < 2:
            return math.inf
        variance = max(0.0, self.squares / self.num_batches - self.mean**2)
        return math.sqrt(variance / (self.num_batches - 1))


@dataclass(slots=True)
class Paying:
    """The costs of both ways, and the choice between them."""

    is_exact: bool | None = None  # None: not known yet; once False, every batch is recorded
    recorded: _Way = field(default_factory=_Way)
    plain: _Way = field(default_factory=_Way)
    setup: float = 0.0  # seconds of CPU, of one process of a later pass than the first
    num_passes: int = 0
    has_images: bool = False  # whether any batch had an image to record
    is_watched: bool = False
    samples_of_process: float = math.inf  # that a process makes, by which its setup is shared

    def begin(self, num_samples: float, num_fresh: int) -> None:
        """Begin a pass over so many samples, in so many processes that start with it; 0: in those that there are."""
        self.num_passes += 1
        self.samples_of_process = num_samples / num_fresh if num_fresh else math.inf

    def marked(self, keys: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield the keys of a pass; those of batches that are made without recording as requests that say so."""
        for key, after in keys:
            is_plain = self._chooses_plain()
            (self.plain if is_plain else self.recorded).num_asked += 1
            if is_plain:
                key = BatchRequest.of(key)
                key.is_recorded, key.is_watched = False, self.is_watched
            yield key, after

    def take(self, cost: Cost) -> None:
        """Learn from a batch."""
        self.is_exact = cost.is_exact and self.is_exact is not False
        self.has_images = self.has_images or cost.has_images
        self.is_watched = self.is_watched or cost.is_watched
        if self.num_passes > 1:  # what processes of the first pass find out later ones take over
            self.setup = max(self.setup, cost.setup)
        (self.plain if cost.is_plain else self.recorded).add(cost)

    @property
    def runs_alone(self) -> bool:
        """Whether the Dataset's code runs alone, but for a batch now and then."""
        return bool(self.is_exact) and (not self.has_images or (self._is_known() and not self._is_recording_cheaper()))

    def measured(self, dataset: str) -> str:
        """Return in one line what a sample of the Dataset costs in each way, and which one is taken."""
        alone, num = self.plain.num_samples, self.recorded.num_samples + self.plain.num_samples
        if self.is_exact is None:
            return "nothing yet: ask again once batches have come"
        if not self.is_exact:
            cost = f"{_shown(self._of_recorded)} of CPU per sample; " if self.recorded.num_measured else ""
            return (
                f"{cost}{dataset}'s code alone would give other pixels, if only by a little, so that was not measured: "
                "faithful=True runs it so"
            )
        if not self.has_images:
            return (
                f"{dataset} gave nothing to defer, so its code ran alone, as in torch's loader, for {alone:,} of {num:,} samples"
            )
        if not self._is_known():
            samples = f"{self.recorded.num_measured:,} and {self.plain.num_measured:,} samples measured"
            return f"not decided yet whether deferral pays: batches are made with it and without in turn ({samples})"
        verdict = "pays" if self._is_recording_cheaper() else "does not pay"
        samples = f"{self.recorded.num_measured:,} and {self.plain.num_measured:,} samples"
        return (
            f"{_shown(self._of_recorded)} of CPU per sample with deferral, {_shown(self.plain.mean)} by {dataset}'s code alone "
            f"({samples}): deferral {verdict}; its code ran alone, as in torch's loader, for {alone:,} of {num:,} samples, with "
            "the same pixels"
        )

    def _chooses_plain(self) -> bool:
        if not self.is_exact:
            return False
        is_other = (self.plain.num_asked + self.recorded.num_asked) % TRIED_AGAIN == 0
        if not self.has_images:  # nothing to record so far
            return not is_other
        if not self._is_known():
            return self.plain.num_asked < self.recorded.num_asked
        return self._is_recording_cheaper() == is_other

    def _is_known(self) -> bool:
        fewest = min(self.recorded.num_measured, self.plain.num_measured)
        if fewest < MIN_SAMPLES:
            return False
        error = math.hypot(self.recorded.error, self.plain.error)
        return fewest >= MOST_SAMPLES or abs(self._of_recorded - self.plain.mean) > 2 * error

    def _is_recording_cheaper(self) -> bool:
        return self._of_recorded < self.plain.mean

    @property
    def _of_recorded(self) -> float:
        """Seconds of CPU per sample that is recorded, with its share of what its process needs once."""
        return self.recorded.mean + self.setup / self.samples_of_process


def _shown(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


# -- what is known of a Dataset ---------------------------------------------------------------------------

_known: weakref.WeakKeyDictionary[Any, list[tuple[Any, Paying]]] = weakref.WeakKeyDictionary()


def paying_of(dataset: Any, collate_fn: Any) -> Paying:
    """Return what loaders of this Dataset and `collate_fn` have learned in this process."""
    try:
        there = _known.setdefault(dataset, [])
    except TypeError:  # cannot be a key
        return Paying()
    found = next((paying for function, paying in there if function is collate_fn), None)
    if found is None:
        found = Paying()
        there.append((collate_fn, found))
    return found
