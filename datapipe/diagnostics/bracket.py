"""The bracket around `next()`: two marks, a few numbers, and nothing that waits.

Whoever hands out batches calls `begin` right before `next()` and `end` right after it; all between one end and
the next begin is the step's work. Device times come in later, when the device has passed the marks.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from datapipe.diagnostics.clock import Clock, Mark
from datapipe.diagnostics.timeline import Context, Syncs, Timeline

T = TypeVar("T")

_NAN = float("nan")
_MAX_PENDING = 1024  # steps of which the device owes the times; with more, marks are left out until it has caught up
_MAX_READ = 4  # steps read back per begin: one is added, so it catches up, and one begin never takes long


@dataclass(frozen=True, slots=True)
class Hooks:
    """What else is watched. What is not is reported as not measured."""

    syncs: bool = False  # `note_sync` is called for every wait for the device
    copies: bool = False  # `begin_copy` and `end_copy` surround every copy from the host to the device
    updates: bool = False  # `note_update` is called for every step of an optimiser


class _Open:
    """A step under way, or waiting for the device."""

    __slots__ = (
        "begin",
        "close",
        "close_ns",
        "copies",
        "end",
        "end_ns",
        "is_ahead",
        "num_ready",
        "num_updates",
        "of",
        "start_ns",
        "sync_s",
    )

    def __init__(self, of: Pass, start_ns: int, begin: Mark | None, num_ready: int) -> None:
        self.of, self.start_ns, self.begin, self.num_ready = of, start_ns, begin, num_ready
        self.end_ns: int | None = None  # None: there was no batch
        self.end: Mark | None = None
        self.close_ns = 0
        self.close: Mark | None = None
        self.copies: list[Mark | None] = []  # begin, end, begin, end, ...
        self.is_ahead = -1
        self.sync_s = 0.0
        self.num_updates = 0


class Bracket:
    """Measures all loaders of one thread: only one step is under way at a time, whichever loader it is of.

    The thread is the first that begins. What other threads do between begin and end is not measured, and neither is
    a `next()` within a `next()`: of a loader over a loader, the outermost counts. How often either happened is in `context()`.
    """

    def __init__(self, clock: Clock, *, timeline: Timeline | None = None, hooks: Hooks | None = None) -> None:
        self.timeline = timeline or Timeline()
        self.clock = clock
        self._hooks = hooks or Hooks()
        self._inside: Pass | None = None  # in its next()
        self._open: _Open | None = None
        self._pending: deque[_Open] = deque()
        self._thread: int | None = None
        self._num_passes = 0
        self._num_nested = 0
        self._num_elsewhere = 0
        self._trains_elsewhere = False
        self._syncs: dict[str, Syncs] = {}
        self._has_device = False

    def open_pass(self, *, loader: int = 0, is_evaluation: bool = False) -> Pass:
        """A pass over a loader, to be made where its iterator is. `loader`: any number that tells loaders apart."""
        self._num_passes += 1
        return Pass(self, self._num_passes - 1, loader, is_evaluation=is_evaluation)

    def note_sync(self, name: str, host_s: float) -> None:
        """The host has just waited `host_s` seconds for the device, in what users call `name`."""
        if not self._is_in_step():
            return
        assert self._open is not None
        self._open.sync_s += host_s
        syncs = self._syncs.setdefault(name, Syncs())
        syncs.num += 1
        syncs.host_s += host_s

    def begin_copy(self) -> None:
        """A copy from the host to the device is about to be given to the current stream."""
        if self._is_in_step() and self._hooks.copies:
            assert self._open is not None
            if len(self._open.copies) % 2 == 0:  # else one within another
                self._open.copies.append(self._mark())

    def end_copy(self) -> None:
        """It has been given."""
        if self._is_in_step() and self._hooks.copies:
            assert self._open is not None
            if len(self._open.copies) % 2 == 1:
                self._open.copies.append(self._mark())

    def note_update(self) -> None:
        """An optimiser has made a step. May be called from any thread."""
        if self._thread not in (None, threading.get_ident()):
            self._trains_elsewhere = True
        elif self._is_in_step():
            assert self._open is not None
            self._open.num_updates += 1

    def finish(self) -> None:
        """End the step under way, if any, and wait until the device has passed all marks. May be called again."""
        self._inside = None
        self._close_step()
        for entry in self._pending:
            for mark in (entry.end, entry.close):
                if mark is not None:
                    self.clock.wait(mark)
        self._read(len(self._pending))

    def context(self) -> Context:
        """What is known beside the steps."""
        device = self.clock.device if self._has_device else None
        return Context(device, self._num_nested, self._num_elsewhere, self._trains_elsewhere, dict(self._syncs))

    # -- for Pass ---------------------------------------------------------------------------------

    def _begin(self, of: Pass, num_ready: int | None) -> None:
        if self._thread is None:
            self._thread = threading.get_ident()
        if not self._is_ours():
            self._num_elsewhere += 1
            return
        if self._inside not in (None, of):  # a pass that begins twice has lost an end, and goes on
            self._num_nested += 1
            return
        self._inside = of
        self._read(_MAX_READ)  # before the clock is looked at: what the bracket itself takes is not waiting
        start_ns = self.clock.now_ns()
        entry = _Open(of, start_ns, self._mark(), -1 if num_ready is None else num_ready)
        self._close_with(start_ns, entry.begin)
        self._open = entry

    def _end(self, of: Pass) -> None:
        if self._inside is not of or not self._is_ours():
            return
        assert self._open is not None
        self._open.end = self._mark()
        self._open.end_ns = self.clock.now_ns()
        self._inside = None

    def _stop(self, of: Pass) -> None:
        if not self._is_ours():
            return
        if self._inside is of:
            self._inside = None
        elif self._open is None or self._open.of is not of:
            return
        self._close_step()

    def _is_ours(self) -> bool:
        return self._thread == threading.get_ident()

    def _is_in_step(self) -> bool:
        return self._is_ours() and self._inside is None and self._open is not None

    def _mark(self) -> Mark | None:
        return self.clock.mark() if len(self._pending) < _MAX_PENDING else None

    def _close_step(self) -> None:
        if self._open is not None:
            is_step = self._open.end_ns is not None
            self._close_with(self.clock.now_ns(), self._mark() if is_step else None)

    def _close_with(self, now_ns: int, mark: Mark | None) -> None:
        """`mark`: stays in use as the begin of the entry that follows, if one does; that one is read later."""
        entry, self._open = self._open, None
        if entry is not None:
            entry.close_ns, entry.close = now_ns, mark
            if entry.end is not None:
                entry.is_ahead = int(not self.clock.is_past(entry.end))
            self._pending.append(entry)

    def _read(self, at_most: int) -> None:
        """Take over the oldest steps, as far as the device has passed their marks."""
        for _ in range(at_most):
            if not self._pending:
                return
            entry = self._pending[0]
            if not all(self.clock.is_past(mark) for mark in (entry.close, entry.end, entry.begin) if mark is not None):
                return
            self._pending.popleft()
            if entry.end_ns is not None:
                self.timeline.add(self._row(entry, entry.end_ns))
            # `close` is the begin of what follows, and released with it; the last one of a pass is let go.
            for mark in (entry.begin, entry.end, *entry.copies):
                if mark is not None:
                    self.clock.release(mark)

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


class Pass:
    """One pass over a loader, as its bracket sees it. Made by `Bracket.open_pass`."""

    __slots__ = ("_bracket", "is_evaluation", "is_fresh", "loader", "pass_id")

    def __init__(self, bracket: Bracket, pass_id: int, loader: int, *, is_evaluation: bool) -> None:
        self._bracket = bracket
        self.pass_id = pass_id
        self.loader = loader
        self.is_evaluation = is_evaluation  # may be changed until the step is read
        self.is_fresh = True  # none of its steps was read yet

    def begin(self, num_ready: int | None = None) -> None:
        """Right before `next()`. `num_ready`: batches that could be handed out at once, in order; None: not known."""
        self._bracket._begin(self, num_ready)

    def end(self) -> None:
        """Right after `next()` has given a batch."""
        self._bracket._end(self)

    def stop(self) -> None:
        """After `next()` has raised, or when the pass is left: the step under way, if it is of this pass, ends here."""
        self._bracket._stop(self)


def watch(
    batches: Iterable[T],
    bracket: Bracket,
    *,
    loader: int = 0,
    is_evaluation: bool = False,
    count_ready: Callable[[], int] | None = None,
) -> Iterator[T]:
    """The batches of one pass, each `next()` measured. `count_ready`: batches that could be handed out at once."""
    watched = bracket.open_pass(loader=loader, is_evaluation=is_evaluation)
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
            del batch  # the user's alone while the next one is waited for
    finally:
        watched.stop()
