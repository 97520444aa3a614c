"""Row groups in memory: read when first asked for, kept while there is room."""

from __future__ import annotations

import copy
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from datapipe.containers.rows import read_rows
from datapipe.index.row_groups import RowGroup, Rows

MAX_NBYTES = 256 << 20

# What a windowed order has under way. A window is twice as long as a row group, so that it takes part in three of them, and
# batches are made ahead, in the window that follows, with two more.
_NUM_UNDER_WAY = 5  # row groups in each lane
_WINDOWS_NBYTES = 1 << 30


def max_lanes(group_nbytes: int) -> int:
    """Lanes of a windowed order such that `row_groups_of_windows` has room for them; at least one.

    `group_nbytes`: of the wanted fields of a row group. The same on every machine, as orders depend on it.
    """
    return max(1, _WINDOWS_NBYTES // (_NUM_UNDER_WAY * max(1, group_nbytes)))


def row_groups_of_windows(num_fields: int) -> RowGroups:
    """Room for what a windowed order has under way: 1 GiB, or the row groups of one lane where those are larger."""
    return RowGroups(max_nbytes=_WINDOWS_NBYTES, min_groups=_NUM_UNDER_WAY * num_fields)


class RowGroups:
    """The row groups used last, of at most `max_nbytes`; but `min_groups` of them, however large. Thread-safe.

    What threads have just read, or still use, comes on top: one row group for each of them.
    Where there is no room, those go first of which as many rows were read as they have: an epoch is done with them. A row
    group is read once however many threads ask for it meanwhile; they wait. What failed to be read is tried again when
    next asked for. `read`: reads one, and raises what it raises.
    """

    def __init__(
        self, *, max_nbytes: int = MAX_NBYTES, min_groups: int = 1, read: Callable[[RowGroup], Rows] = read_rows
    ) -> None:
        self._max_nbytes = max_nbytes
        self._min_groups = min_groups
        self._read = read
        self._forget()
        _everywhere.add(self)

    def value(self, group: RowGroup, row: int) -> bytes:
        """The value in a row of the shard. Raises MissingDataError, StorageError, IntegrityError or DecodeError."""
        return self._rows(group)[row - group.first]

    @property
    def nbytes(self) -> int:
        """Of what is kept."""
        return self._nbytes

    def _rows(self, group: RowGroup) -> Rows:
        while True:
            with self._lock:
                if (kept := self._kept.get(group)) is not None:
                    self._use(group, kept)
                    return kept.rows
                reading = self._readings.get(group)
                if reading is None:
                    mine = self._readings[group] = _Reading()
                    break
            reading.done.wait()
            if reading.error is not None:
                raise copy.copy(reading.error) from reading.error
            if reading.rows is not None:
                with self._lock:
                    if (kept := self._kept.get(group)) is not None:
                        self._use(group, kept)
                return reading.rows
        return self._read_now(group, mine)

    def _read_now(self, group: RowGroup, reading: _Reading) -> Rows:
        try:
            rows = reading.rows = self._read(group)
        except Exception as exc:
            reading.error = exc
            raise
        finally:  # whoever waits goes on, and reads it himself where this thread was interrupted
            with self._lock:
                del self._readings[group]
                if reading.rows is not None:
                    self._keep(group, reading.rows)
            reading.done.set()
        return rows

    def _keep(self, group: RowGroup, rows: Rows) -> None:
        """Make room, then keep it: `nbytes`, which is read without the lock, is never beyond the bound."""
        kept = _Kept(rows, rows.nbytes)
        while self._nbytes + kept.nbytes > self._max_nbytes and len(self._kept) >= self._min_groups:
            oldest = next(itertools.chain(self._spent, self._kept))
            self._nbytes -= self._kept.pop(oldest).nbytes
            self._spent.pop(oldest, None)
        self._kept[group] = kept
        self._nbytes += kept.nbytes
        self._use(group, kept)

    def _use(self, group: RowGroup, kept: _Kept) -> None:
        self._kept.move_to_end(group)
        if group in self._spent:  # another epoch
            del self._spent[group]
            kept.num_used = 0
        kept.num_used += 1
        if kept.num_used == len(group):
            self._spent[group] = None

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[RowGroup, _Kept] = OrderedDict()  # the one used last at the end
        self._spent: dict[RowGroup, None] = {}  # of them, those of which all was read; the longest time ago first
        self._readings: dict[RowGroup, _Reading] = {}
        self._nbytes = 0


@dataclass(slots=True)
class _Kept:
    """A row group in memory."""

    rows: Rows
    nbytes: int
    num_used: int = 0  # values read


_everywhere: weakref.WeakSet[RowGroups] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child: threads that were reading, or held a lock, are not there to end it."""
    for groups in list(_everywhere):
        groups._forget()


os.register_at_fork(after_in_child=_forget_all)


class _Reading:
    """A row group that a thread is reading."""

    __slots__ = ("done", "error", "rows")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.rows: Rows | None = None
        self.error: Exception | None = None
