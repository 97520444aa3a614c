"""Time the transforms of a batch: exclusive times by name, from a few calls of each.

Only some batches are timed, few enough that the average cost is small. In these, each outermost call is timed as a whole.
Timing the nested calls as well costs tens of microseconds, and a batch makes hundreds of calls; so that is done for some
calls, spread over the batch, and extrapolated to all.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from datapipe.instruments.torch_stages.profile import Counters, TransformTime
from datapipe.instruments.torch_stages.ranges import recorder


class ThreadCounters:
    """The kernel's counters of the thread that creates it, in the process that creates it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._io = _open("io")
        self._schedstat = _open("schedstat")

    def __del__(self) -> None:
        for file in (self._io, self._schedstat):
            if file is not None:
                with suppress(OSError):
                    os.close(file)

    def before(self, *, with_reading: bool = True) -> Counters:
        """Return the sums as of the return. Takes a few microseconds, most of them for the bytes read."""
        queued_ns = self._queued_ns()
        reading = self._io_nbytes(is_counted=True) if with_reading else (None, None)
        return Counters(*reading, queued_ns)

    def after(self, *, with_reading: bool = True) -> Counters:
        """Return the sums as of the call."""
        reading = self._io_nbytes(is_counted=False) if with_reading else (None, None)
        return Counters(*reading, self._queued_ns())

    def _io_nbytes(self, *, is_counted: bool) -> tuple[int | None, int | None]:
        """Return bytes read by calls, and from storage. `is_counted`: include what this call itself reads."""
        with suppress(OSError, ValueError):
            if self._io is not None:
                text = os.pread(self._io, 512, 0)
                words = text.split()
                read, storage = words.index(b"rchar:") + 1, words.index(b"read_bytes:") + 1
                return int(words[read]) + (len(text) if is_counted else 0), int(words[storage])
        return None, None

    def _queued_ns(self) -> int | None:
        with suppress(OSError, ValueError, IndexError):
            if self._schedstat is not None:
                return int(os.pread(self._schedstat, 128, 0).split()[1])
        return None


def thread_counters() -> ThreadCounters:
    """Return the counters of the calling thread, kept open between batches."""
    kept = getattr(_kept, "counters", None)
    if kept is None or kept.pid != os.getpid():  # a forked child's thread is not its parent's
        kept = _kept.counters = ThreadCounters()
    return kept


def between(start: Counters, end: Counters) -> Counters:
    """Return the difference of two readings."""
    return Counters(
        _difference(start.read_nbytes, end.read_nbytes),
        _difference(start.storage_nbytes, end.storage_nbytes),
        _difference(start.queued_ns, end.queued_ns),
    )


_kept = threading.local()


def _difference(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else max(0, end - start)


def _open(name: str) -> int | None:
    try:
        return os.open(f"/proc/thread-self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


_BATCH_COST_NS = 20_000  # approximate cost of timing a batch at all
_CALL_COST_NS = 1_000  # cost of timing one call as a whole
_PART_COST_NS = 6_000  # cost of timing a call in detail, for each nested callable, patching included
_DETAIL_NS = 50_000  # budget for timing calls in detail, per timed batch
_AVERAGE_NS = 10_000  # budget for timing, per batch on average
_FAST_NS = 1_000_000  # batches that are made faster than this are looked into rarely, as looking costs some tens of microseconds
_RARELY = 8  # one of so many
_ALWAYS = 32  # batches that are looked into in any case, the first ones of a worker
_SPREAD = 2_654_435_761  # scatters numbers (Knuth's multiplicative hashing)
_WORKER_SHARE = 0.005  # additional budget, as a share of the time that a worker takes for a batch


class TimedCallable:
    """A callable of a dataset, such as a Compose: the number of its calls, and which of them are timed in detail."""

    __slots__ = ("max_timed", "num_calls", "num_timed", "phase", "stride", "times", "total_ns")

    def __init__(self) -> None:
        self.num_calls = self.num_timed = self.phase = self.total_ns = 0
        self.stride, self.max_timed = 1, 4  # in the first batch, the first calls
        self.times: dict[str, list[int]] = {}  # name -> wall and CPU time without nested calls, calls timed

    def next_batch(self, batch: int, budget_ns: int) -> None:
        """Spread the calls to be timed over a batch that makes as many calls as the last one did."""
        if self.num_timed:
            num_parts = sum(num for _, _, num in self.times.values()) / self.num_timed
            self.max_timed = max(1, int(budget_ns / (_PART_COST_NS * num_parts)))
            self.stride = -(-self.num_calls // self.max_timed)
        self.phase = batch % self.stride
        self.num_calls = self.num_timed = self.total_ns = 0
        self.times = {}

    def is_due(self) -> bool:
        """Count a call; return True if it should be timed in detail."""
        due = self.num_timed < self.max_timed and self.num_calls % self.stride == self.phase
        self.num_calls += 1
        self.num_timed += due
        return due


class TimingSchedule:
    """Chooses the batches of one iterator to time. The choice is random, so that no pattern is missed forever."""

    __slots__ = ("_draw", "_mean_ns", "_num_asked", "_num_batches", "_num_left", "_share_ns", "_targets")

    def __init__(self, seed: int | None = None) -> None:
        self._draw = random.Random(seed).random  # leaves the script's own generator unchanged
        self._targets: dict[str, TimedCallable] = {}
        self._num_asked = 0
        self._mean_ns = 0.0  # of making a batch, over the latest
        self._num_batches = 0
        self._num_left = 0  # batches before the next one that is timed
        self._share_ns = 0

    def is_due(self) -> bool:
        """Count a batch; return True if it should be looked into: every slow one, and some of many fast ones.

        Workers choose the same rounds of batches, and no period of the data is missed forever.
        """
        number, self._num_asked = self._num_asked, self._num_asked + 1
        if number < _ALWAYS or self._mean_ns >= _FAST_NS:
            return True
        group, place = divmod(number, _RARELY)
        return (group * _SPREAD >> 7) % _RARELY == place

    def clock(self) -> TransformClock | None:
        """Return the clock for the next batch; None: it is not timed."""
        batch, self._num_batches = self._num_batches, self._num_batches + 1
        if self._num_left:
            self._num_left -= 1
            return None
        return TransformClock(self._targets, batch, _DETAIL_NS + self._share_ns)

    def note(self, made_ns: int, clock: TransformClock | None, *, is_worker: bool) -> None:
        """Record that a batch took `made_ns` and was timed by `clock`."""
        self._mean_ns += (made_ns - self._mean_ns) / (8 if self._mean_ns else 1)
        self._share_ns = int(_WORKER_SHARE * made_ns) if is_worker else 0  # a consumer waits meanwhile
        if clock is not None:
            spacing = max(1, round(clock.cost_ns() / (_AVERAGE_NS + self._share_ns)))
            wait = int(self._draw() * (2 * spacing - 1))  # spacing - 1 on average
            self._num_left = min(wait, self._num_batches)  # at first more often: a pass may be short


class TransformClock:
    """Times the calls of one thread while it fetches one batch. `targets` are kept from batch to batch."""

    __slots__ = ("_is_muted", "_outermost", "_stack", "_targets")

    def __init__(self, targets: dict[str, TimedCallable], batch: int, budget_ns: int) -> None:
        for target in targets.values():
            target.next_batch(batch, budget_ns)
        self._targets = targets
        self._outermost: TimedCallable | None = None
        self._stack: list[tuple[object, list[int]]] = []  # calls in progress; wall and CPU time of nested calls
        self._is_muted = False

    def is_under_way(self, called: object) -> bool:
        """Return True if this object is already being timed, or if nothing nested is to be timed."""
        return self._is_muted or (bool(self._stack) and self._stack[-1][0] is called)

    def is_due(self, name: str) -> bool:
        """Return True if the next call is timed in detail."""
        if self._stack:
            return True
        self._outermost = self._targets.get(name)
        if self._outermost is None:
            self._outermost = self._targets[name] = TimedCallable()
        return self._outermost.is_due()

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make an outermost call that is not due."""
        assert self._outermost is not None
        self._is_muted = True
        start_ns = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            self._is_muted = False
            self._outermost.total_ns += time.perf_counter_ns() - start_ns

    def call_timed(self, called: object, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make a call that is due."""
        within = [0, 0]
        ranges = recorder()
        if ranges is not None:
            ranges.push(name)
        self._stack.append((called, within))
        start_ns, start_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        try:
            return function(*args, **kwargs)
        finally:
            cpu_ns = time.thread_time_ns() - start_cpu_ns
            wall_ns = time.perf_counter_ns() - start_ns
            if ranges is not None:
                ranges.pop()
            self._stack.pop()
            self._add(name, wall_ns, cpu_ns, within)

    def by_name(self) -> tuple[TransformTime, ...]:
        """Return the times by name, extrapolated to all calls."""
        sums: dict[str, tuple[float, float]] = {}
        for target in self._targets.values():
            for name, (wall_ns, cpu_ns, _) in target.times.items():
                scale, (wall, cpu) = target.num_calls / target.num_timed, sums.get(name, (0.0, 0.0))
                sums[name] = wall + wall_ns * scale, cpu + cpu_ns * scale
        return tuple(TransformTime(name, int(wall), int(cpu)) for name, (wall, cpu) in sums.items())

    def total_ns(self) -> int:
        """Return the time of all outermost calls."""
        return sum(target.total_ns for target in self._targets.values())

    def cost_ns(self) -> int:
        """Return the approximate cost of the timing."""
        targets = self._targets.values()
        num_parts = sum(num for target in targets for _, _, num in target.times.values())
        return _BATCH_COST_NS + _CALL_COST_NS * sum(target.num_calls for target in targets) + _PART_COST_NS * num_parts

    def _add(self, name: str, wall_ns: int, cpu_ns: int, within: list[int]) -> None:
        assert self._outermost is not None
        times = self._outermost.times.setdefault(name, [0, 0, 0])
        times[0] += wall_ns - within[0]
        times[1] += cpu_ns - within[1]
        times[2] += 1
        if self._stack:
            around = self._stack[-1][1]
            around[0] += wall_ns
            around[1] += cpu_ns
        else:
            self._outermost.total_ns += wall_ns
