"""Find whether samples need seeds. Most Datasets draw no random numbers, and seeds cost more than many a sample.

A process seeds its first samples, and watches from which random states they draw: torch's, `random` or numpy's. If no code may
read a state without drawing from it, later samples are made with seeds for these states alone. The others are compared before
and after each batch. If one has changed, the batch is made again with all seeds, and that state is seeded from then on. Hence
every batch is as if its samples had been seeded, whatever was seen before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datapipe.kernel.random_state import ALL_STATES, random_mark
from datapipe.kernel.state_readers import may_read_state

MIN_SAMPLES = 64  # seeded and watched in each process before seeds are left out


class SeedNeed:
    """The random states from which samples of a Dataset have drawn in this process, and whether others need no seeds."""

    def __init__(self) -> None:
        self.drawn: frozenset[str] = frozenset()  # the states from which a sample has drawn, of ALL_STATES
        self._num_watched = 0
        self._looked_at: tuple[int, ...] | None = None  # ids of the Dataset and the values of its attributes
        self._may_read = True

    @property
    def is_watching(self) -> bool:
        """Whether samples that are seeded are to be made by `watched`."""
        return self._num_watched < MIN_SAMPLES

    def look_at(self, dataset: Any) -> None:
        """Look whether code of a Dataset may read the random state, if its attributes are others than before."""
        attributes = tuple(map(id, (dataset, *getattr(dataset, "__dict__", {}).values())))
        if attributes != self._looked_at:
            self._looked_at, self._may_read = attributes, may_read_state(dataset) is not None

    def watched(self, make: Callable[[Any], Any], key: Any) -> Any:
        """Return `make(key)`, and note whether it draws. Raises what it raises."""
        before = random_mark()
        try:
            return make(key)
        finally:
            self._num_watched += 1
            self.drawn |= ALL_STATES if before is None else before.changed(random_mark())

    def may_leave_out(self) -> bool:
        """Return whether seeds of other states than `drawn` may be left out, if these are compared before and after a batch."""
        return self._num_watched >= MIN_SAMPLES and not self._may_read and self.drawn != ALL_STATES
