"""Find by measurement whether recording pays, where leaving it out changes no pixel.

The training process decides for each batch, as it asks workers for it, by the CPU time of the batches that have come. So what was
learned holds for all workers, and for the passes that follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from datapipe.adapt.deferral.requests import BatchRequest

MIN_SAMPLES = 64  # made in each way before the cheaper way is taken
TRIED_AGAIN = 32  # one batch in so many is made in the other way, so that the costs stay known


class Cost(NamedTuple):
    """The cost of a batch, in the process that made it."""

    is_plain: bool  # whether it was made without recording
    is_exact: bool  # whether it has the pixels that the other way would give
    num_samples: int
    seconds: float | None = None  # of CPU, of fetch and collation; None: the process was warming up
    has_images: bool = True  # whether there was an image to record; False only of batches made without recording


@dataclass(slots=True)
class _Way:
    num_asked: int = 0  # batches
    num_measured: int = 0  # samples
    num_samples: int = 0
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        """Seconds of CPU per sample."""
        return self.seconds / self.num_measured


@dataclass(slots=True)
class Paying:
    """The costs of both ways, and the choice between them."""

    is_exact: bool | None = None  # None: not known yet; once False, every batch is recorded
    recorded: _Way = field(default_factory=_Way)
    plain: _Way = field(default_factory=_Way)
    num_without: int = 0  # latest samples that were made without recording and had no image to record

    def marked(self, keys: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield the keys of a pass; those of batches that are made without recording as requests that say so."""
        for key, after in keys:
            is_plain = self._chooses_plain()
            (self.plain if is_plain else self.recorded).num_asked += 1
            if is_plain:
                key = BatchRequest.of(key)
                key.is_recorded = False
            yield key, after

    def take(self, cost: Cost) -> None:
        """Learn from a batch."""
        self.is_exact = cost.is_exact and self.is_exact is not False
        way = self.plain if cost.is_plain else self.recorded
        way.num_samples += cost.num_samples
        if cost.is_plain:
            self.num_without = 0 if cost.has_images else self.num_without + cost.num_samples
        if cost.seconds is not None:
            way.num_measured += cost.num_samples
            way.seconds += cost.seconds

    def lines(self) -> list[str]:
        """Return what was measured, once both ways were."""
        if not self.is_exact or not self._is_known():
            return []
        verdict = "pays" if self._is_recording_cheaper() else "does not pay"
        num = self.recorded.num_samples + self.plain.num_samples
        return [
            f"deferring {verdict}: {_shown(self.recorded.mean)} of CPU per sample with it, {_shown(self.plain.mean)} without "
            f"({self.recorded.num_measured:,} and {self.plain.num_measured:,} samples measured); {self.plain.num_samples:,} of "
            f"{num:,} samples were made without it, with the same pixels"
        ]

    def _chooses_plain(self) -> bool:
        if not self.is_exact or self.recorded.num_measured < MIN_SAMPLES:
            return False
        if self.num_without >= MIN_SAMPLES:  # nothing to record, and where that changes these batches tell
            return True
        if not self._is_known():
            return self.plain.num_asked < self.recorded.num_asked
        is_other = (self.plain.num_asked + self.recorded.num_asked) % TRIED_AGAIN == 0
        return self._is_recording_cheaper() == is_other

    def _is_known(self) -> bool:
        return min(self.plain.num_measured, self.recorded.num_measured) >= MIN_SAMPLES

    def _is_recording_cheaper(self) -> bool:
        return self.recorded.mean <= self.plain.mean


def _shown(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
