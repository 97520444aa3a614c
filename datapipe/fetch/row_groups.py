"""Keep row groups in memory: read when first needed, kept while there is space."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from datapipe.containers.formats import read_rows
from datapipe.errors import IntegrityError, MissingDataError, StorageError, copied
from datapipe.fetch.shard_cache.cache import ShardCache
from datapipe.index.entries import RowGroup, Rows
from datapipe.stores.location import is_url

MAX_NBYTES = 256 << 20

# What a windowed order has in use. A window is twice as long as a row group, so it overlaps three of them, and
# batches made ahead, in the next window, overlap two more.
_NUM_UNDER_WAY = 5  # row groups in each lane
_WINDOWS_NBYTES = 1 << 30


def max_lanes(group_nbytes: int) -> int:
    """Return the lanes of a windowed order for which `row_groups_of_windows` has space; at least one.

    `group_nbytes`: size of the wanted fields of a row group. The same on every machine, as orders depend on it.
    """
    return max(1, _WINDOWS_NBYTES // (_NUM_UNDER_WAY * max(1, group_nbytes)))


def row_groups_of_windows(num_fields: int) -> RowGroups:
    """Return a cache with space for a windowed order: 1 GiB, or the row groups of one lane if those are larger."""
    return RowGroups(max_nbytes=_WINDOWS_NBYTES, min_groups=_NUM_UNDER_WAY * num_fields)


class RowGroups:
    """The row groups used last, of at most `max_nbytes`; but `min_groups` of them, however large. Thread-safe.

    Row groups that threads have just read, or still use, come on top: one for each thread.
    If there is no space, row groups of which as many values were read as they have rows go first: an epoch is done with them. A
    row group is read once however many threads need it meanwhile; they wait. A row group that failed is read again when
    it is needed again. `read`: reads a row group; its errors are raised.
    """

    def __init__(
        self, *, max_nbytes: int = MAX_NBYTES, min_groups: int = 1, read: Callable[[RowGroup], Rows] = read_rows
    ) -> None:
        self._max_nbytes = max_nbytes
        self._min_groups = min_groups
        self._read = read
        self._shards: ShardCache | None = None
        self._forget()
        _everywhere.add(self)

    def read_from(self, shards: ShardCache) -> None:
        """Read those shards of a store from the disk that are kept there."""
        self._shards = shards

    def value(self, group: RowGroup, row: int) -> bytes:
        """Return the value in a row of the shard. Raises MissingDataError, StorageError, IntegrityError or DecodeError."""
        return self._rows(group)[row - group.first]

    @property
    def nbytes(self) -> int:
        """The size of what is kept."""
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
                raise copied(reading.error) from reading.error
            if reading.rows is not None:
                with self._lock:
                    if (kept := self._kept.get(group)) is not None:
                        self._use(group, kept)
                return reading.rows
        return self._read_now(group, mine)

    def _read_now(self, group: RowGroup, reading: _Reading) -> Rows:
        try:
            rows = reading.rows = self._read_where_it_lies(group)
        except Exception as exc:
            reading.error = exc
            raise
        finally:  # waiting threads go on; if this thread was interrupted, one of them reads
            with self._lock:
                del self._readings[group]
                if reading.rows is not None:
                    self._keep(group, reading.rows)
            reading.done.set()
        return rows

    def _read_where_it_lies(self, group: RowGroup) -> Rows:
        path = None if self._shards is None or not is_url(group.path) else self._shards.file_of(group.path, len(group))
        if self._shards is not None and path is not None:
            try:
                return self._read(dataclasses.replace(group, path=path))
            except (MissingDataError, StorageError):  # removed meanwhile
                pass
            except IntegrityError:
                self._shards.reject(group.path)
        return self._read(group)

    def _keep(self, group: RowGroup, rows: Rows) -> None:
        """Make space, then keep it: `nbytes`, which is read without the lock, never exceeds the bound."""
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
        if group in self._spent:  # a new epoch
            del self._spent[group]
            kept.num_used = 0
        kept.num_used += 1
        if kept.num_used == len(group):
            self._spent[group] = None

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[RowGroup, _Kept] = OrderedDict()  # the one used last is at the end
        self._spent: dict[RowGroup, None] = {}  # those of which all was read; the least recent first
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
    """Reset all caches in a forked child: threads that were reading, or held a lock, do not exist there."""
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
