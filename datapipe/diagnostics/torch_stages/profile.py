"""What is known of one batch of a torch DataLoader. Times are `time.perf_counter_ns`, which processes share.

asked ............................................. taken            the consumer, in next()
  start -- dataset -- collate_start -- collate -- ready              a worker, or the consumer itself
                          pickle_start .. pickle_end                 a thread of the worker
                                        open_start .. open_end       the consumer, or the thread that pins
                                                   pin_start .. pin_end
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, replace
from typing import Any


def _by_position(self: Any) -> tuple[type, tuple[Any, ...]]:
    """How a dataclass pickles in a fifth of the time: these are unpickled while a consumer waits."""
    return type(self), tuple(getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class TransformTime:
    """What one kind of transform took of a batch, without the transforms within it: right on average over batches."""

    name: str  # its class, or function
    wall_ns: int  # of all calls, extrapolated from those that were timed, as `cpu_ns` is
    cpu_ns: int
    num_timed: int

    __reduce__ = _by_position


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel counted for the thread while it made the batch; None: not to be had on this machine."""

    read_nbytes: int | None  # by read() and its kin, page cache or not
    storage_nbytes: int | None  # that came from storage, mapped files too
    blocked_ns: int | None  # waited for block devices (needs the kernel's task_delayacct)
    queued_ns: int | None  # could have run, and waited for a core

    __reduce__ = _by_position


@dataclass(frozen=True, slots=True)
class Making:
    """One batch, as it was made. Travels with the batch."""

    iterator: tuple[int, int]  # process and number of the iterator it is for
    pid: int  # who made it
    worker: int | None  # None: the consumer itself
    num_samples: int | None  # None: the dataset gives whole batches
    nbytes: int | None  # of tensors and arrays; None: none were found
    start_ns: int
    collate_start_ns: int
    ready_ns: int
    dataset_cpu_ns: int  # of the thread, from start to collate_start
    collate_cpu_ns: int
    process_cpu_ns: int | None  # of all threads, from start to ready; None where others share the process
    transforms: tuple[TransformTime, ...] | None  # None: of this batch they were not timed
    transform_ns: int | None  # of all together, not extrapolated
    counters: Counters

    __reduce__ = _by_position

    @property
    def dataset_ns(self) -> int:
        return self.collate_start_ns - self.start_ns

    @property
    def collate_ns(self) -> int:
        return self.ready_ns - self.collate_start_ns


@dataclass(frozen=True, slots=True)
class Passage:
    """One batch, on its way from a worker."""

    pickle_start_ns: int
    pickle_end_ns: int
    open_start_ns: int
    open_end_ns: int


@dataclass(frozen=True, slots=True)
class Pinning:
    """One batch, copied into pinned memory."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """All that is known of one batch that was handed out."""

    loader: int  # as the attachment numbers loaders
    pass_id: int  # of all passes in this process
    step: int  # of the pass, in the order of handing out
    asked_ns: int
    taken_ns: int
    made: Making
    moved: Passage | None  # None: it was made by the consumer
    pinned: Pinning | None  # None: not pinned

    def to_json(self) -> dict[str, Any]:
        """JSON-safe."""
        return dataclasses.asdict(self)


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
