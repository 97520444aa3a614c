"""Measure around `next()`: two marks, a few numbers, and no waiting.

The code that hands out batches calls `begin` right before `next()` and `end` right after it. Everything from one end to the
next begin is the step's work. Device times follow later, when the device has passed the marks.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from datapipe.instruments.measure.clock import Clock, Mark
from datapipe.instruments.measure.timeline import Context, Syncs, Timeline
from datapipe.instruments.measure.watching import Hooks

T = TypeVar("T")

_NAN = float("nan")
_MAX_PENDING = 1024  # steps whose device times are outstanding; with more, no marks are made until the device has caught up
# Steps that are read back at once. One at a time would cost several times as much: the code that does it is cold by then.
READ_AT_ONCE = 20


@dataclass(slots=True)
class _Open:
    """A step in progress, or waiting for the device."""

    of: MeasuredPass
    start_ns: int
    cpu_ns: int | None
    begin: Mark | None
    num_ready: int
    end_ns: int | None = None  # None: there was no batch
    end: Mark | None = None
    close_ns: int = 0
    cpu_s: float = _NAN
    close: Mark | None = None
    copies: list[Mark | None] = field(default_factory=list)  # begin, end, begin, end, ...
    is_ahead: int = -1
    sync_s: float = 0.0
    num_updates: int = 0


class ThreadBracket:
    """Measures all loaders of one thread: only one step is in progress at a time, whichever loader it belongs to.

    The thread is the first one that begins. Work of other threads between begin and end is not measured, and neither is a
    `next()` within a `next()`: for a loader over a loader, the outermost counts. `context()` reports how often either happened.
    `on_read` is called at times, in that thread, with the number of training steps in the timeline.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        hooks: Hooks | None = None,
        on_read: Callable[[int], None] | None = None,
    ) -> None:
        self.timeline = Timeline()
        self.clock = clock
        self._on_read = on_read
        self._hooks = hooks or Hooks()
        self._inside: MeasuredPass | None = None  # the pass that is in its next()
        self._open: _Open | None = None
        self._pending: deque[_Open] = deque()
        self._thread: int | None = None
        self._thread_name: str | None = None  # None: the main thread
        self._num_passes = 0
        self._num_nested = 0
        self._num_elsewhere = 0
        self._trains_elsewhere = False
        self._syncs: dict[str, Syncs] = {}
        self._has_device = False

    def open_pass(self, *, loader: int = 0) -> MeasuredPass:
        """Return a pass over a loader; create it with its iterator. `loader`: any number that identifies the loader."""
        self._num_passes += 1
        return MeasuredPass(self, self._num_passes - 1, loader)

    def note_sync(self, name: str, host_s: float) -> None:
        """Record that the host has just waited `host_s` seconds for the device, in the function that users call `name`."""
        if (step := self._step_in_progress()) is not None:
            step.sync_s += host_s
            syncs = self._syncs.setdefault(name, Syncs())
            syncs.num += 1
            syncs.host_s += host_s

    def begin_copy(self) -> None:
        """Record that a copy from the host to the device is about to be queued on the current stream."""
        step = self._step_in_progress()
        if step is not None and self._hooks.copies and len(step.copies) % 2 == 0:  # otherwise one copy within another
            step.copies.append(self._mark())

    def end_copy(self) -> None:
        """Record that the copy has been queued."""
        step = self._step_in_progress()
        if step is not None and self._hooks.copies and len(step.copies) % 2 == 1:
            step.copies.append(self._mark())

    def note_update(self, device: int | None = None) -> None:
        """Record that an optimiser has made a step. May be called from any thread.

        `device`: the index of the GPU that holds its first parameter, whose time is measured from then on; None: no GPU does.
        """
        if device is not None:
            self.clock.follow(device)
        if self._thread not in (None, threading.get_ident()):
            self._trains_elsewhere = True
        elif (step := self._step_in_progress()) is not None:
            step.num_updates += 1

    def finish(self) -> None:
        """End the step in progress, if any, and wait until the device has passed all marks. May be called again."""
        self._inside = None
        self._close_step()
        for entry in self._pending:
            for mark in (entry.end, entry.close):
                if mark is not None:
                    self.clock.wait(mark)
        self._read(len(self._pending))

    def context(self) -> Context:
        """Return what is known besides the steps."""
        device = self.clock.device if self._has_device else None
        counts = self._num_nested, self._num_elsewhere, self._trains_elsewhere
        return Context(device, *counts, syncs=dict(self._syncs), thread=self._thread_name)

    # -- for MeasuredPass -------------------------------------------------------------------------

    def _begin(self, of: MeasuredPass, num_ready: int | None) -> None:
        if self._thread is None:
            self._thread, thread = threading.get_ident(), threading.current_thread()
            self._thread_name = None if thread is threading.main_thread() else thread.name
        if not self._is_ours():
            self._num_elsewhere += 1
            return
        if self._inside not in (None, of):  # a pass that begins twice has missed its end, and continues
            self._num_nested += 1
            return
        self._inside = of
        if len(self._pending) >= READ_AT_ONCE:
            self._read(2 * READ_AT_ONCE)  # before reading the clock: the bracket's own time is not waiting
        start_ns, cpu_ns = self.clock.now_ns(), self.clock.cpu_ns()
        entry = _Open(of, start_ns, cpu_ns, self._mark(), -1 if num_ready is None else num_ready)
        self._close_with(start_ns, cpu_ns, entry.begin)
        self._open = entry

    def _end(self, of: MeasuredPass) -> None:
        if self._inside is not of or not self._is_ours():
            return
        assert self._open is not None
        self._open.end = self._mark()
        self._open.end_ns = self.clock.now_ns()
        self._inside = None

    def _stop(self, of: MeasuredPass) -> None:
        if not self._is_ours():
            return
        if self._inside is of:
            self._inside = None
        elif self._open is None or self._open.of is not of:
            return
        self._close_step()

    def _is_ours(self) -> bool:
        return self._thread == threading.get_ident()

    def _step_in_progress(self) -> _Open | None:
        """Return the step whose work this thread is doing; None in `next()`, before the first one, and in other threads."""
        return self._open if self._is_ours() and self._inside is None else None

    def _mark(self) -> Mark | None:
        return self.clock.mark() if len(self._pending) < _MAX_PENDING else None

    def _close_step(self) -> None:
        if self._open is not None:
            is_step = self._open.end_ns is not None
            self._close_with(self.clock.now_ns(), self.clock.cpu_ns(), self._mark() if is_step else None)

    def _close_with(self, now_ns: int, cpu_ns: int | None, mark: Mark | None) -> None:
        """Close the open entry. `mark` also begins the next entry, if there is one, which is read later."""
        entry, self._open = self._open, None
        if entry is not None:
            entry.close_ns, entry.close = now_ns, mark
            if cpu_ns is not None and entry.cpu_ns is not None:
                entry.cpu_s = (cpu_ns - entry.cpu_ns) * 1e-9
            if entry.end is not None:
                entry.is_ahead = int(not self.clock.is_past(entry.end))
            self._pending.append(entry)

    def _read(self, at_most: int) -> None:
        """Store the oldest steps whose marks the device has passed."""
        for _ in range(min(at_most, len(self._pending))):
            entry = self._pending[0]
            if not all(self.clock.is_past(mark) for mark in (entry.close, entry.end, entry.begin) if mark is not None):
                break
            self._pending.popleft()
            if entry.end_ns is not None:
                self.timeline.add(self._row(entry, entry.end_ns))
            # `close` is the begin of the next entry and is released with it; the last one of a pass is dropped.
            for mark in (entry.begin, entry.end, *entry.copies):
                if mark is not None:
                    self.clock.release(mark)
        if self._on_read is not None:
            self._on_read(self.timeline.training.num_steps)

    def _row(self, entry: _Open, end_ns: int) -> dict[str, Any]:
        gap_s = self._elapsed(entry.begin, entry.end)
        after_s = self._elapsed(entry.end, entry.close)
        copies = entry.copies[: len(entry.copies) // 2 * 2]
        pairs = zip(copies[::2], copies[1::2], strict=True)
        copy_s = math.fsum(self._elapsed(*pair) for pair in pairs) if self._hooks.copies and not math.isnan(after_s) else _NAN
        self._has_device = self._has_device or not math.isnan(gap_s)
        is_first, entry.of.is_fresh = entry.of.is_fresh, False
        return {
            "start_ns": entry.start_ns,
            "pass_id": entry.of.pass_id,
            "loader": entry.of.loader,
            "host_wait_s": (end_ns - entry.start_ns) * 1e-9,
            "host_work_s": (entry.close_ns - end_ns) * 1e-9,
            "cpu_s": entry.cpu_s,
            "gap_s": gap_s,
            "copy_s": copy_s,
            "work_s": after_s if math.isnan(copy_s) else after_s - copy_s,
            "sync_s": entry.sync_s if self._hooks.syncs else _NAN,
            "num_ready": entry.num_ready,
            "is_ahead": entry.is_ahead,
            "num_updates": min(entry.num_updates, 127) if self._hooks.updates else -1,
            "is_first": is_first,
            "is_evaluation": entry.of.is_evaluation,
        }

    def _elapsed(self, start: Mark | None, end: Mark | None) -> float:
        return _NAN if start is None or end is None else self.clock.elapsed_s(start, end)


class MeasuredPass:
    """One pass over a loader, as its bracket measures it. Made by `ThreadBracket.open_pass`."""

    __slots__ = ("_bracket", "is_evaluation", "is_fresh", "loader", "pass_id")

    def __init__(self, bracket: ThreadBracket, pass_id: int, loader: int) -> None:
        self._bracket = bracket
        self.pass_id = pass_id
        self.loader = loader
        self.is_evaluation = False  # may be changed until the step is read
        self.is_fresh = True  # none of its steps has been read yet

    def begin(self, num_ready: int | None = None) -> None:
        """Call right before `next()`. `num_ready`: batches that could be handed out at once, in order; None: unknown."""
        self._bracket._begin(self, num_ready)

    def end(self) -> None:
        """Call right after `next()` has returned a batch."""
        self._bracket._end(self)

    def stop(self) -> None:
        """Call after `next()` has raised, or when the pass is left: ends the step in progress if it belongs to this pass."""
        self._bracket._stop(self)


def watch(
    batches: Iterable[T],
    bracket: ThreadBracket,
    *,
    loader: int = 0,
    is_evaluation: bool = False,
    count_ready: Callable[[], int] | None = None,
) -> Iterator[T]:
    """Yield the batches of one pass, with each `next()` measured. `count_ready`: batches that could be handed out at once."""
    watched = bracket.open_pass(loader=loader)
    watched.is_evaluation = is_evaluation
    try:
        iterator = iter(batches)
        while True:
            watched.begin(None if count_ready is None else count_ready())
            try:
                batch = next(iterator)
            except StopIteration:
                return
            watched.end()
            yield batch
            del batch  # only the user may hold it while the next one is awaited
    finally:
        watched.stop()
