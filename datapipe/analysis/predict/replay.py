"""Simulate measured batch times in the queue between a loader and a device.

The wait for data is not max(supply, demand): with jitter, a loader whose mean rate is just sufficient still keeps the device
waiting. So every batch is followed from its request to the end of the work on it, through workers that are busy or blocked,
delivery in order or as they are done, and a host that runs ahead of the device. Pure; many replicates run at once, as
(num_replicates,) arrays.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import OptionError

Floats: TypeAlias = NDArray[np.float64]
_T = TypeVar("_T", np.float64, np.bool_)
_ALL = slice(None)

MAX_LEAD = 8  # steps a host gets ahead of the device before CUDA's queue of kernels is full; more with few kernels


class Delivery(enum.Enum):
    """The assignment of batches to workers, and the order in which they are handed out."""

    ROUND_ROBIN = "round-robin"  # torch: worker w makes batches w, w + n, w + 2n, ...
    COMPLETION = "completion"  # torch's in_order=False: as they are done; who made the one handed out is asked for another
    SHARED = "shared"  # all work on one batch, like datapipe's decode threads on its blocks


@dataclass(frozen=True, slots=True)
class Setup:
    """The parameters of a loader and its machine that the replay uses."""

    num_workers: int  # 0: batches are made within next()
    depth: int  # batches requested and not yet handed out; torch: num_workers * prefetch_factor
    delivery: Delivery = Delivery.ROUND_ROBIN
    num_cores: float | None = None  # shared by workers and the training's own thread; None: enough

    def __post_init__(self) -> None:
        if self.num_workers < 0 or (self.num_workers and self.depth < 1):
            raise OptionError(f"{self.num_workers} workers, {self.depth} batches in progress: need >= 0 and >= 1")
        if self.num_cores is not None and self.num_cores <= 0:
            raise OptionError(f"num_cores is {self.num_cores}; it must be above 0, or None for enough")


@dataclass(frozen=True, slots=True)
class Course:
    """The times of each batch: (num_replicates, num_steps) seconds each, or arrays that broadcast to it."""

    stall_s: Floats  # making it: waiting for storage or similar, independent of the load on the cores
    cpu_s: Floats  # making it: on a core
    delivery_s: Floats  # the caller's own part of next(), after the batch is ready
    host_s: Floats  # the caller, from there to the next next(), without waiting for the device
    work_s: Floats  # the device, without waiting for data
    is_synced: NDArray[np.bool_]  # the caller waits for the device at the end of the step
    host_cpu_s: float = 0.0  # core time per step that is spent outside the threads that make batches
    pace: Floats | None = None  # (num_workers,) time of each worker relative to the mean; None: all are equal


@dataclass(frozen=True, slots=True)
class Replayed:
    """Means over the counted steps, (num_replicates,) each."""

    step_s: Floats
    gap_s: Floats  # the device idle while the caller was in next()

    @property
    def starvation(self) -> Floats:
        return self.gap_s / self.step_s


def replay(course: Course, setup: Setup, *, num_settling: int = 0) -> Replayed:
    """Simulate every batch. The first `num_settling` steps fill and drain buffers and are not counted."""
    fields = (course.stall_s, course.cpu_s, course.delivery_s, course.host_s, course.work_s)
    num_replicates, num_steps = np.broadcast_shapes(course.is_synced.shape, *(field.shape for field in fields))
    if not 0 <= num_settling < num_steps:
        raise OptionError(f"num_settling is {num_settling} of {num_steps} steps; some must be left to count")
    stall, cpu, delivery, host, work = (_by_step(field, num_replicates, num_steps) for field in fields)
    synced = _by_step(course.is_synced, num_replicates, num_steps)
    cores = _Cores(setup, num_replicates, course.host_cpu_s, float(course.host_s.mean()))
    is_ordered = setup.delivery is not Delivery.COMPLETION or not setup.num_workers
    makers: _InOrder | _ByCompletion
    makers = _InOrder(setup, cores, stall, cpu) if is_ordered else _ByCompletion(setup, cores, stall, cpu, course.pace)
    any_synced = bool(synced.any())
    asked = np.zeros(num_replicates)  # when the caller enters next()
    free = np.zeros(num_replicates)  # when the device has finished all queued work
    idle = np.zeros(num_replicates)
    counted_from = np.zeros(num_replicates)
    lead = np.zeros((MAX_LEAD, num_replicates))  # when the device finished the latest steps
    for step in range(num_steps):
        if step == num_settling:
            counted_from, idle = np.maximum(asked, free), np.zeros(num_replicates)
        received = makers.take(step, asked) + delivery[step]
        makers.hand_out(step, received)
        gap = np.maximum(received - np.maximum(asked, free), 0.0)
        idle += gap
        free = np.maximum(free, received) + work[step]
        asked = np.maximum(received + host[step], lead[step % MAX_LEAD])
        if any_synced:
            asked = np.where(synced[step], np.maximum(asked, free), asked)
        lead[step % MAX_LEAD] = free
    ended = np.maximum(asked, free)
    return Replayed((ended - counted_from) / (num_steps - num_settling), idle / (num_steps - num_settling))


def _by_step(field: NDArray[_T], num_replicates: int, num_steps: int) -> NDArray[_T]:
    """Return (num_steps, num_replicates) in one piece."""
    return np.ascontiguousarray(np.broadcast_to(field, (num_replicates, num_steps)).T)


class _InOrder:
    """Workers that take turns, or share each batch, or the caller itself."""

    def __init__(self, setup: Setup, cores: _Cores, stall_s: Floats, cpu_s: Floats) -> None:
        self._setup, self._cores, self._stall_s, self._cpu_s = setup, cores, stall_s, cpu_s
        is_shared = setup.delivery is Delivery.SHARED
        self._num_servers = 1 if is_shared else max(1, setup.num_workers)
        self._threads = setup.num_workers if is_shared else 1  # per server
        num_replicates = stall_s.shape[1]
        self._done = np.zeros((self._num_servers, num_replicates))  # when each will have finished its batches
        self._issued = np.zeros((max(1, setup.depth), num_replicates))  # when batch k, at k % depth, was requested

    def take(self, step: int, asked: Floats) -> Floats:
        """Return when the batch is available to a caller that requests it at `asked`."""
        stall_s, cpu_s = self._stall_s[step], self._cpu_s[step]
        if not self._setup.num_workers:
            made: Floats = asked + stall_s + cpu_s
            return made
        server = step % self._num_servers
        start = np.maximum(self._done[server], self._issued[step % len(self._issued)])
        ready = self._cores.end(step, asked, start, cpu_s, start + (stall_s + cpu_s) / self._threads)
        self._done[server] = ready
        received: Floats = np.maximum(asked, ready)
        return received

    def hand_out(self, step: int, received: Floats) -> None:
        """Record that a batch was handed out, so that another may be requested."""
        self._issued[step % len(self._issued)] = received


class _ByCompletion:
    """Workers with a queue each, whose batches are handed out as they are done. Batches begin in the order of time."""

    def __init__(self, setup: Setup, cores: _Cores, stall_s: Floats, cpu_s: Floats, pace: Floats | None) -> None:
        self._cores, self._stall_s, self._cpu_s, self._pace = cores, stall_s, cpu_s, pace
        num_workers, each = setup.num_workers, max(1, setup.depth // setup.num_workers)
        num_replicates = stall_s.shape[1]
        self._every = np.arange(num_replicates)
        self._asked = np.zeros((num_workers, each, num_replicates))  # when each of a worker's batches was requested, in a ring
        self._ready = np.full((num_workers, each, num_replicates), np.inf)  # when it is done; inf: it has not begun
        self._first = np.zeros((num_workers, num_replicates), np.int64)  # the place of the earliest one, not handed out
        self._next = np.zeros((num_workers, num_replicates), np.int64)  # of the next one to begin
        self._num_left = np.full((num_workers, num_replicates), each)  # that have not begun
        self._free_at = np.zeros((num_workers, num_replicates))  # when each worker will have finished what it has begun
        self._num_begun = np.zeros(num_replicates, np.int64)
        self._server = np.zeros(num_replicates, np.int64)  # whose batch was taken last

    def take(self, step: int, asked: Floats) -> Floats:
        """Return when the next batch is available to a caller that requests it at `asked`."""
        workers = np.arange(len(self._first))[:, None]
        while True:
            ready = self._ready[workers, self._first, self._every]
            begins = np.maximum(self._free_at, self._asked[workers, self._next, self._every])
            begins = np.where(self._num_left > 0, begins, np.inf)
            is_earlier = begins.min(axis=0) < ready.min(axis=0)
            if not is_earlier.any():
                break
            self._begin(begins.argmin(axis=0)[is_earlier], self._every[is_earlier], step)
        self._server = ready.argmin(axis=0)
        received: Floats = np.maximum(asked, ready[self._server, self._every])
        return received

    def hand_out(self, step: int, received: Floats) -> None:
        """Record that a batch was handed out: its worker is asked for another."""
        server, every, num_places = self._server, self._every, self._ready.shape[1]
        place = self._first[server, every]
        self._asked[server, place, every], self._ready[server, place, every] = received, np.inf
        self._num_left[server, every] += 1
        self._first[server, every] = (place + 1) % num_places

    def _begin(self, server: NDArray[np.int64], of: NDArray[np.int64], step: int) -> None:
        """Let one worker of each of these replicates begin its next batch."""
        number, place = self._num_begun[of] % len(self._stall_s), self._next[server, of]
        stall_s, cpu_s = self._stall_s[number, of], self._cpu_s[number, of]
        if self._pace is not None:
            stall_s, cpu_s = stall_s * self._pace[server], cpu_s * self._pace[server]
        start = np.maximum(self._free_at[server, of], self._asked[server, place, of])
        ready = self._cores.end(step, start, start, cpu_s, start + stall_s + cpu_s, of)
        self._free_at[server, of] = self._ready[server, place, of] = ready
        self._next[server, of] = (place + 1) % self._ready.shape[1]
        self._num_left[server, of] -= 1
        self._num_begun[of] += 1


class _Cores:
    """The cores that all workers share with the caller: computation passes through them as through one queue."""

    def __init__(self, setup: Setup, num_replicates: int, host_cpu_s: float, host_s: float) -> None:
        self._setup, self._host_cpu_s = setup, host_cpu_s
        self._host_threads = max(1.0, min(host_cpu_s / max(host_s, 1e-12), setup.num_cores or 1.0))  # that compute at once
        self._worked_off = np.zeros(num_replicates)  # when they will have finished all started work

    def end(
        self, step: int, now: Floats, start: Floats, cpu_s: Floats, ready: Floats, of: NDArray[np.int64] | slice = _ALL
    ) -> Floats:
        """Return when a batch begun at `start` is done, which with enough cores would be at `ready`. `of`: the replicates."""
        cores = self._free(step, now)
        if cores is None:
            return ready
        self._worked_off[of] = np.maximum(self._worked_off[of], start) + cpu_s / cores
        later: Floats = np.maximum(ready, self._worked_off[of])
        return later

    def _free(self, step: int, now: Floats) -> Floats | None:
        """Return the cores that the caller leaves free, as it takes its turns too; None if there are enough for all.

        The caller's share of them is known from its steps so far.
        """
        cores, num_workers = self._setup.num_cores, self._setup.num_workers
        num_threads = num_workers + self._host_threads
        if cores is None or num_threads <= cores:
            return None
        fair = cores * self._host_threads / num_threads
        left: Floats = cores - np.minimum(self._host_cpu_s * step / np.maximum(now, 1e-12), fair)
        return left
