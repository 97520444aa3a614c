"""Measure a batch where it is made, and send the measurements along with the batch.

An iterator's `_collate_fn` becomes a `CollateProbe` instead of the loader's function. It goes to the workers as the
function would, and imports this module in workers that are not forked. torch's fetchers, whose `fetch` is patched, make a
batch and end with the probe. In another process than the one that asked, the batch leaves in an `Envelope`, which
disappears when the queue unpickles it: no user code ever sees one.

An error here costs a profile, never a batch.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from datapipe.instruments.torch_stages.call_sampler import call_sampler
from datapipe.instruments.torch_stages.patching import forget_us
from datapipe.instruments.torch_stages.profile import ARRIVALS, Arrival, Making, Passage, SampledCall
from datapipe.instruments.torch_stages.ranges import recorder
from datapipe.instruments.torch_stages.timing import TimingSchedule, TransformClock, between, thread_counters
from datapipe.instruments.torch_stages.transform_patching import (
    Slot,
    Undo,
    find_slots,
    lend_composes,
    lend_slots,
    set_clock,
    take_back,
)

_MAX_LEAVES = 64  # leaves of a batch whose size is added up
_numbers = itertools.count()
_local = threading.local()


def new_iterator_key() -> tuple[int, int]:
    """Return a key that identifies an iterator across processes."""
    return os.getpid(), next(_numbers)


class CollateProbe:
    """Collates as `function` does, and records the time during a fetch.

    `restore(function, iterator, has_ranges)` unpickles it, in a worker that was not forked.
    """

    def __init__(self, function: Callable[[Any], Any], iterator: tuple[int, int], restore: Callable[..., CollateProbe]) -> None:
        self.function = function
        self.iterator = iterator
        self.restore = restore
        self.schedule = TimingSchedule()
        self.slots: list[Slot] | None = None

    def __call__(self, samples: Any) -> Any:
        fetching: Fetching | None = getattr(_local, "fetching", None)
        if fetching is not None and fetching.probe is self:
            fetching.begin_collate(samples)
        try:
            return self.function(samples)
        except BaseException as exc:
            forget_us(exc)
            raise

    def __getattr__(self, name: str) -> Any:
        if name == "function":  # during unpickling or copying
            raise AttributeError(name)
        return getattr(self.function, name)

    def __reduce__(self) -> tuple[Callable[..., CollateProbe], tuple[Any, ...]]:
        return self.restore, (self.function, self.iterator, recorder() is not None)


class Fetching:
    """One batch being made by the calling thread."""

    def __init__(self, probe: CollateProbe, dataset: object) -> None:
        self.probe = probe
        self.is_collating = False
        self.num_samples: int | None = None
        self._before: Fetching | None = getattr(_local, "fetching", None)
        self._is_worker = os.getpid() != probe.iterator[0]
        if probe.slots is None:
            probe.slots = find_slots(dataset, sys.modules["torch.utils.data"].Dataset)
        self._clock: TransformClock | None = probe.schedule.clock()
        self._clock_before: TransformClock | None = None
        self._undos: list[Undo] = []
        self._calls: tuple[SampledCall, ...] = ()
        self._recorder = recorder()
        self.counters = thread_counters().before(with_reading=self._clock is not None)
        self.process_cpu_ns = time.process_time_ns() if self._is_worker else 0
        self.collate_start_ns = self.collate_cpu_start_ns = 0
        self.start_ns, self.start_cpu_ns = 0, 0

    def begin(self) -> None:
        _local.fetching = self
        if self._recorder is not None:
            self._recorder.push("dataset")
        if self._clock is not None:
            lend_composes(self._undos)
            lend_slots(self.probe.slots or [], self._undos)
            call_sampler().begin()
        self._clock_before = set_clock(self._clock)
        self.start_ns, self.start_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()

    def begin_collate(self, samples: Any) -> None:
        if not self.is_collating:
            self.collate_cpu_start_ns, self.collate_start_ns = time.thread_time_ns(), time.perf_counter_ns()
            self.is_collating = True
            self._give_back()
            if self._recorder is not None:
                self._recorder.pop()
                self._recorder.push("collate")
            self.num_samples = len(samples) if isinstance(samples, (list, tuple)) else None

    def end(self, batch: Any, *, has_samples: bool) -> Any:
        """Return the batch to pass on: itself, or in an envelope."""
        ready_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        after = thread_counters().after(with_reading=self._clock is not None)
        self.leave()
        probe, clock = self.probe, self._clock
        probe.schedule.note(ready_ns - self.start_ns, clock, is_worker=self._is_worker)
        if not self.is_collating:
            return batch  # another kind of fetcher
        process_cpu_ns = time.process_time_ns() - self.process_cpu_ns if self._is_worker else None
        made = Making(
            iterator=probe.iterator,
            pid=os.getpid(),
            worker=_worker_id(),
            num_samples=self.num_samples if has_samples else None,
            nbytes=_nbytes(batch),
            start_ns=self.start_ns,
            collate_start_ns=self.collate_start_ns,
            ready_ns=ready_ns,
            dataset_cpu_ns=self.collate_cpu_start_ns - self.start_cpu_ns,
            collate_cpu_ns=cpu_ns - self.collate_cpu_start_ns,
            process_cpu_ns=process_cpu_ns,
            transforms=None if clock is None else clock.by_name(),
            transform_ns=None if clock is None else clock.total_ns(),
            counters=between(self.counters, after),
            calls=self._calls,
        )
        if self._is_worker:
            return Envelope(batch, made)
        ARRIVALS.add(batch, Arrival(made, None))
        return batch

    def _give_back(self) -> None:
        if self._clock is not None:
            self._calls = call_sampler().end()
        set_clock(self._clock_before)
        take_back(self._undos)

    def leave(self) -> None:
        """End, with a batch or without one."""
        if self._recorder is not None:
            self._recorder.pop()
        _local.fetching = self._before
        if not self.is_collating:
            self._give_back()


def is_fetching() -> bool:
    """Return True if this thread is making a batch."""
    return getattr(_local, "fetching", None) is not None


def probed(fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a fetcher's `fetch`, measured if its function is a probe."""

    @functools.wraps(fetch)
    def measured(self: Any, possibly_batched_index: Any) -> Any:
        probe = self.collate_fn
        is_due = type(probe) is CollateProbe and probe.schedule.is_due()
        fetching = _begin(probe, self.dataset) if is_due else None
        try:
            batch = fetch(self, possibly_batched_index)
        except BaseException as exc:
            if fetching is not None:
                _guarded(fetching.leave)
            forget_us(exc)
            raise
        if fetching is None:
            return batch
        return _guarded(lambda: fetching.end(batch, has_samples=self.auto_collation), batch)

    return measured


class Envelope:
    """A batch in transit to another process; it unpickles as the batch itself."""

    __slots__ = ("batch", "made")

    def __init__(self, batch: Any, made: Making) -> None:
        self.batch = batch
        self.made = made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # a tuple's members are pickled, and unpickled, in order
        return open_envelope, (_Moment(None), self.batch, _Moment(self.made))


class _Moment:
    """The time when it is pickled, and when it is unpickled."""

    def __init__(self, made: Making | None) -> None:
        self._made = made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return note_time, (time.perf_counter_ns(), self._made)


def note_time(pickled_ns: int, made: Making | None) -> tuple[int, int, Making | None]:
    """Return the times of pickling and unpickling."""
    return pickled_ns, time.perf_counter_ns(), made


def open_envelope(start: tuple[int, int, None], batch: Any, end: tuple[int, int, Making]) -> Any:
    """Return the batch, after storing its measurements."""
    made = end[2]
    if made.iterator[0] == os.getpid():
        ARRIVALS.add(batch, Arrival(made, Passage(start[0], end[0], start[1], end[1])))
    return batch


def _begin(probe: CollateProbe, dataset: object) -> Fetching | None:
    fetching = None
    try:
        fetching = Fetching(probe, dataset)
        fetching.begin()
        return fetching
    except Exception:
        if fetching is not None:
            _guarded(fetching.leave)
        return None


def _guarded(act: Callable[[], Any], otherwise: Any = None) -> Any:
    try:
        return act()
    except Exception:
        return otherwise


def _worker_id() -> int | None:
    info = sys.modules["torch.utils.data"].get_worker_info()
    return None if info is None else int(info.id)


def _nbytes(batch: Any) -> int | None:
    """Return the bytes of the batch's tensors and arrays, as far as a look at a few leaves finds them."""
    total, pending, num = None, [batch], 0
    while pending and num < _MAX_LEAVES:
        value = pending.pop()
        num += 1
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, (list, tuple)):
            pending.extend(value[:_MAX_LEAVES])
        elif isinstance(size := getattr(value, "nbytes", None), int):
            total = (total or 0) + size
        elif isinstance(value, (bytes, str)):
            total = (total or 0) + len(value)
    return total
