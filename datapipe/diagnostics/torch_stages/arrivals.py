"""Batches that have arrived in the consumer's process, with what is known of each, until they are handed out.

A batch is known by its identity: torch hands out the very object that came out of the queue, or that pinning made of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from datapipe.diagnostics.torch_stages.profile import Making, Passage, Pinning

_MAX_ARRIVALS = 8192  # more were never asked for: of passes that were left


@dataclass(frozen=True, slots=True)
class Arrival:
    made: Making
    moved: Passage | None
    pinned: Pinning | None = None


class Arrivals:
    """Thread-safe as dicts are: one thread adds or pins a batch, and another takes it later."""

    def __init__(self) -> None:
        self._by_id: dict[int, deque[Arrival]] = {}  # several: small integers and the like are one object

    def add(self, batch: object, arrival: Arrival) -> None:
        if len(self._by_id) >= _MAX_ARRIVALS:
            self._by_id.clear()
        self._by_id.setdefault(id(batch), deque()).append(arrival)

    def is_known(self, batch: object) -> bool:
        return id(batch) in self._by_id

    def pinned(self, batch: object, pinned: object, times: Pinning) -> None:
        """`pinned` was made of `batch`."""
        arrival = self._pop(id(batch))
        if arrival is not None:
            self.add(pinned, replace(arrival, pinned=times))

    def take(self, batch: object, iterator: tuple[int, int]) -> Arrival | None:
        """What is known of a batch that this iterator hands out."""
        while (arrival := self._pop(id(batch))) is not None:
            if arrival.made.iterator == iterator:
                return arrival
        return None  # what was there was of an object that is gone

    def forget(self, iterator: tuple[int, int]) -> None:
        """Nothing that has arrived for it is handed out any more."""
        for key, arrivals in list(self._by_id.items()):
            if arrivals and arrivals[0].made.iterator == iterator:
                self._by_id.pop(key, None)

    def _pop(self, key: int) -> Arrival | None:
        waiting = self._by_id.get(key)
        if not waiting:
            return None
        arrival = waiting.popleft()
        if not waiting:
            self._by_id.pop(key, None)
        return arrival


ARRIVALS = Arrivals()  # of this process: what comes out of a queue has nobody else to turn to
