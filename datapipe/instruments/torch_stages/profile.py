"""The profile of one batch of a torch DataLoader. Times are `time.perf_counter_ns`, which processes share.

asked ............................................. taken            the consumer, in next()
  start -- dataset -- collate_start -- collate -- ready              a worker, or the consumer itself
                          pickle_start .. pickle_end                 a thread of the worker
                                        open_start .. open_end       the consumer, or the thread that pins
                                                   pin_start .. pin_end
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any


def _by_position(self: Any) -> tuple[type, tuple[Any, ...]]:
    """Pickle a dataclass by position, in a fifth of the time: profiles are unpickled while a consumer waits."""
    return type(self), tuple(getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class TransformTime:
    """The time of one kind of transform in a batch, without nested transforms; correct on average over batches."""

    name: str  # its class, or function
    wall_ns: int  # of all calls, extrapolated from the timed ones, like `cpu_ns`
    cpu_ns: int

    __reduce__ = _by_position


@dataclass(frozen=True, slots=True)
class SampledCall:
    """What a thread was seen computing within a Dataset, outside of its transforms."""

    decodes: bool  # files are read or decoded; or it is not known, as no code of the user's is involved
    name: str | None = None  # of the function that was called, as the user's code names it; None: that code itself computes
    function: str | None = None  # the user's that calls it
    where: str | None = None  # file:line

    __reduce__ = _by_position


@dataclass(frozen=True, slots=True)
class Counters:
    """The kernel's counters for the thread while it made the batch; None: not available on this machine."""

    read_nbytes: int | None  # by read() and similar calls, from the page cache or not
    storage_nbytes: int | None  # from storage, including mapped files
    queued_ns: int | None  # ready to run, waiting for a core

    __reduce__ = _by_position


@dataclass(frozen=True, slots=True)
class Making:
    """The measurements of making one batch. Sent along with the batch."""

    iterator: tuple[int, int]  # process and number of the iterator it is for
    pid: int  # of the process that made it
    worker: int | None  # None: the consumer itself
    num_samples: int | None  # None: the dataset returns whole batches
    nbytes: int | None  # of tensors and arrays; None: none were found
    start_ns: int
    collate_start_ns: int
    ready_ns: int
    dataset_cpu_ns: int  # of the thread, from start to collate_start
    collate_cpu_ns: int
    process_cpu_ns: int | None  # of all threads, from start to ready; None where others share the process
    transforms: tuple[TransformTime, ...] | None  # None: not timed for this batch
    transform_ns: int | None  # of all together, not extrapolated
    counters: Counters
    calls: tuple[SampledCall, ...] = ()  # by moments at which the thread computed; none if transforms were not timed

    __reduce__ = _by_position

    @property
    def dataset_ns(self) -> int:
        return self.collate_start_ns - self.start_ns

    @property
    def collate_ns(self) -> int:
        return self.ready_ns - self.collate_start_ns

    @property
    def total_ns(self) -> int:
        return self.ready_ns - self.start_ns

    @property
    def cpu_ns(self) -> int:
        return self.dataset_cpu_ns + self.collate_cpu_ns

    @property
    def helpers_cpu_ns(self) -> int:
        """The CPU time of the process's other threads meanwhile; 0 if that is unknown."""
        return max(0, (self.process_cpu_ns or 0) - self.cpu_ns)


@dataclass(frozen=True, slots=True)
class Passage:
    """The transfer of one batch from a worker."""

    pickle_start_ns: int
    pickle_end_ns: int
    open_start_ns: int
    open_end_ns: int


@dataclass(frozen=True, slots=True)
class Pinning:
    """The copy of one batch into pinned memory."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """All measurements of one batch that was handed out."""

    loader: int  # the attachment's number for the loader
    pass_id: int  # among all passes in this process
    step: int  # within the pass, in the order of handing out
    asked_ns: int
    taken_ns: int
    made: Making
    moved: Passage | None  # None: it was made by the consumer
    pinned: Pinning | None  # None: not pinned
    freed_ns: int | None = None  # time to free the batch before the last, within this next(); None: it was not held for that


_MAX_ARRIVALS = 8192  # beyond that, the oldest belong to abandoned passes


@dataclass(frozen=True, slots=True)
class Arrival:
    """The measurements of a batch in the main process, before it is handed out."""

    made: Making
    moved: Passage | None
    pinned: Pinning | None = None


class Arrivals:
    """The profiles of arrived batches. Thread-safe as dicts are: one thread adds or pins a batch, another takes it later."""

    def __init__(self) -> None:
        self._by_id: dict[int, deque[Arrival]] = {}  # several: small integers and similar values are one object

    def add(self, batch: object, arrival: Arrival) -> None:
        if len(self._by_id) >= _MAX_ARRIVALS:
            self._by_id.clear()
        self._by_id.setdefault(id(batch), deque()).append(arrival)

    def is_known(self, batch: object) -> bool:
        return id(batch) in self._by_id

    def pinned(self, batch: object, pinned: object, times: Pinning) -> None:
        """Record that `pinned` was made of `batch`."""
        arrival = self._pop(id(batch))
        if arrival is not None:
            self.add(pinned, replace(arrival, pinned=times))

    def take(self, batch: object, iterator: tuple[int, int]) -> Arrival | None:
        """Return the profile of a batch that this iterator hands out."""
        while (arrival := self._pop(id(batch))) is not None:
            if arrival.made.iterator == iterator:
                return arrival
        return None  # the entry belonged to an object that is gone

    def forget(self, iterator: tuple[int, int]) -> None:
        """Drop what has arrived for this iterator, which hands out no more batches."""
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


ARRIVALS = Arrivals()  # global, because objects unpickled from a queue can reach nothing else
