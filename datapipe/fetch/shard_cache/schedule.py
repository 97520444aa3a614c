"""When a pass in windows needs which shard: what a cache fetches next, and what it evicts first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardUse:
    """The steps of an epoch between which a shard is read."""

    url: str
    first_step: int
    last_step: int  # inclusive


class Schedule:
    """The uses of shards by the passes of a loader, and where the pass stands. Thread-safe.

    `uses_of` gives those of an epoch. Batches of up to `num_ahead` steps before the latest one may still be in the making.
    """

    def __init__(self, uses_of: Callable[[int], list[ShardUse]], *, num_ahead: int) -> None:
        self._uses_of = uses_of
        self._num_ahead = num_ahead
        self._known: dict[int, list[ShardUse]] = {}
        self._epoch, self._step = 0, 0
        self._changes = threading.Condition()

    def reach(self, epoch: int, step: int) -> None:
        """A batch of this step begins to be made; batches begin in about the order of their steps."""
        with self._changes:
            is_back = step < self._step - 2 * self._num_ahead  # another pass over the same epoch
            self._step = step if epoch != self._epoch or is_back else max(step, self._step)
            self._epoch = epoch
            self._changes.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until the pass goes on, but no longer than this."""
        with self._changes:
            self._changes.wait(timeout_s)

    def upcoming(self) -> dict[str, int]:
        """How many steps from now each shard is needed next, by URL, in this order: those of this epoch, then of the next one."""
        with self._changes:
            epoch, done = self._epoch, self._step - self._num_ahead
            now, later = self._uses(epoch), self._uses(epoch + 1)
            for other in self._known.keys() - {epoch, epoch + 1}:
                del self._known[other]
        length = max((use.last_step for use in now), default=0) + 1
        steps: dict[str, int] = {}
        for use in now:
            if use.last_step >= done:
                steps.setdefault(use.url, max(0, use.first_step - done))
        for use in later:
            steps.setdefault(use.url, length - done + use.first_step)
        return dict(sorted(steps.items(), key=lambda item: item[1]))

    def is_needed(self, url: str) -> bool:
        """Whether what is left of this epoch needs a shard."""
        with self._changes:
            done = self._step - self._num_ahead
            return any(use.url == url and use.last_step >= done for use in self._uses(self._epoch))

    def _uses(self, epoch: int) -> list[ShardUse]:
        if epoch not in self._known:
            self._known[epoch] = self._uses_of(epoch)
        return self._known[epoch]
