"""Keep the windows of a pass: memory for rows that are shuffled with each other, filled by row groups.

Threads take row groups of the windows that are due, each group once; a thread that needs a window takes its remaining row groups
and waits for the others. A window is dropped once no later step needs it, and its memory returns to the pool when the last
batch is gathered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from datapipe.core.errors import DecodeError, IntegrityError, copied
from datapipe.order.draws import key64, mix64
from datapipe.order.row_order import Piece, RowRun, RunOrder, ShuffleWindow

W = TypeVar("W")  # what fills windows, one per thread

Arrays = Sequence[NDArray[Any]]
Ints = NDArray[np.int64]
Bad = DecodeError | IntegrityError


@dataclass(slots=True)
class Lists:
    """The lists of a window's rows. Pieces are added by several threads, then put together by one."""

    num_columns: int
    pieces: dict[int, list[tuple[NDArray[Any], Ints]]] = field(default_factory=dict)  # by place: elements, lengths of each column
    values: list[NDArray[Any]] = field(default_factory=list)  # of each column: (total,)
    starts: list[Ints] = field(default_factory=list)  # (rows,) each
    lengths: list[Ints] = field(default_factory=list)  # (rows,) each

    def put_together(self, num_rows: int) -> None:
        """Concatenate the pieces in order. Rows of missing pieces have empty lists."""
        for column in range(self.num_columns):
            parts, starts, lengths, total = [], np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64), 0
            for place, found in sorted(self.pieces.items()):
                values, counts = found[column]
                lengths[place : place + len(counts)] = counts
                starts[place : place + len(counts)] = total + np.cumsum(counts) - counts
                parts.append(values)
                total += len(values)
            self.values.append(np.concatenate(parts) if parts else np.empty(0, np.int64))
            self.starts.append(starts)
            self.lengths.append(lengths)
        self.pieces.clear()


@dataclass(slots=True, eq=False)
class LoadedWindow:
    """A window that is being filled, then complete in memory."""

    window: ShuffleWindow
    step: int  # the first step that needs it
    arrays: Any  # memory of (rows, width) for each matrix, as `lease` gave it
    pending: list[Piece]
    num_left: int  # pieces not filled yet
    done: threading.Event = field(default_factory=threading.Event)
    shuffled: NDArray[np.int64] | None = None  # (rows,) row at each shuffled place; None: in their own order
    bad: NDArray[np.bool_] | None = None  # (rows,) rows to be left out
    bad_pieces: list[Piece] = field(default_factory=list)
    error: BaseException | None = None
    lists: Lists | None = None  # of the columns of lists, where there are any

    def __len__(self) -> int:
        return len(self.window)

    def rows_of(self, run: RowRun, start: int, stop: int) -> slice | NDArray[np.int64]:
        """Return the window's rows at the places `start` to `stop` of a run."""
        places = slice(run.start + start, run.start + stop)
        return places if self.shuffled is None else self.shuffled[places]


class WindowStore(Generic[W]):
    """The windows of one pass. Thread-safe.

    `lease(num_rows)`: memory for a window. `fill(worker, window, pieces)`: reads pieces into their rows; DecodeError and
    IntegrityError from it make a piece bad, other errors are the window's. `replace(window, rows, others)`: overwrites rows of a
    full window with others of it. `on_bad(window, piece, error)`: called for a bad piece. `on_error`: "raise", "skip" or
    "replace" bad pieces. `pieces_at_once`: given to one call of `fill`, at most; where that fails, each is tried alone.
    """

    def __init__(
        self,
        order: RunOrder,
        *,
        seed: int,
        first_step: int,
        lease: Callable[[int], Any],
        fill: Callable[[W, LoadedWindow, Sequence[Piece]], None],
        replace: Callable[[LoadedWindow, Ints, Ints], None],
        on_bad: Callable[[LoadedWindow, Piece, Bad], None],
        on_error: str,
        num_lists: int = 0,
        pieces_at_once: int = 1,
    ) -> None:
        self._order = order
        self._num_lists = num_lists
        self._seed = seed
        self._lease = lease
        self._fill = fill
        self._replace = replace
        self._at_once = pieces_at_once
        self._on_bad = on_bad
        self._on_error = on_error
        self._lock = threading.Lock()
        self._windows: dict[ShuffleWindow, LoadedWindow] = {}
        self._used: dict[int, set[ShuffleWindow]] = {}  # by step: the windows that it needs, and those read ahead for it
        self._floor = first_step  # all steps before it are prepared

    def use(
        self, step: int, runs: Sequence[RowRun], ahead: Sequence[ShuffleWindow]
    ) -> tuple[list[LoadedWindow], list[LoadedWindow]]:
        """Return the window of each of a step's runs, and the windows of `ahead` that are new. Drops those that no step needs."""
        with self._lock:
            mine = [self._get(run.window, step) for run in runs]
            new = [window for window in dict.fromkeys(ahead) if window not in self._windows]
            others = [self._get(window, step) for window in new]
            if step >= self._floor:
                self._used[step] = {*(run.window for run in runs), *ahead}
            while self._floor in self._used and self._floor + 1 in self._used:
                del self._used[self._floor]
                self._floor += 1
            needed = set().union(*self._used.values())
            for window in [window for window in self._windows if window not in needed]:
                del self._windows[window]
        return mine, others

    def fill_some(self, window: LoadedWindow, worker: W) -> bool:
        """Fill one remaining piece of the window, or several at once. Returns whether there was one."""
        with self._lock:
            pieces = window.pending[: self._at_once]
            del window.pending[: self._at_once]
        if not pieces:
            return False
        try:
            self._fill_all(window, worker, pieces)
        except BaseException:  # Ctrl-C: another thread fills the pieces
            with self._lock:
                window.pending[:0] = pieces
            raise
        self._filled(window, len(pieces))
        return True

    def _fill_all(self, window: LoadedWindow, worker: W, pieces: Sequence[Piece]) -> None:
        try:
            self._fill(worker, window, pieces)
        except Exception as exc:
            if len(pieces) > 1:
                for piece in pieces:
                    self._fill_all(window, worker, [piece])
            elif isinstance(exc, (DecodeError, IntegrityError)):
                self._spoil(window, pieces[0], exc)
            else:
                window.error = exc

    def fill_ahead(self, window: ShuffleWindow, worker: W) -> None:
        """Fill a remaining piece, or several at once, of a window that is still needed.

        The window is named, not referenced: queued work must not keep dropped windows in memory.
        """
        loaded = self._windows.get(window)
        if loaded is not None:
            self.fill_some(loaded, worker)

    def ensure(self, window: LoadedWindow, worker: W) -> None:
        """Return once the window is in memory. Raises what its row groups raised."""
        while self.fill_some(window, worker):
            pass
        window.done.wait()
        if window.error is not None:
            raise copied(window.error)

    def _get(self, window: ShuffleWindow, step: int) -> LoadedWindow:
        loaded = self._windows.get(window)
        if loaded is None:
            pieces = self._order.pieces(window)
            loaded = LoadedWindow(window, step, self._lease(len(window)), pieces, len(pieces))
            loaded.lists = Lists(self._num_lists) if self._num_lists else None
            self._windows[window] = loaded
        return loaded

    def _spoil(self, window: LoadedWindow, piece: Piece, error: Bad) -> None:
        if self._on_error == "raise":
            window.error = error
            return
        try:
            self._on_bad(window, piece, error)
        except Exception as exc:  # a warning turned into an error
            window.error = exc
        window.bad_pieces.append(piece)

    def _filled(self, window: LoadedWindow, num_pieces: int) -> None:
        with self._lock:
            window.num_left -= num_pieces
            is_last = window.num_left == 0
        if is_last:
            try:
                self._finish(window)
            except Exception as exc:
                window.error = exc
            finally:
                window.done.set()

    def _finish(self, window: LoadedWindow) -> None:
        window.shuffled = self._order.shuffled(window.window)
        if window.lists is not None:
            window.lists.put_together(len(window))
        if not window.bad_pieces:
            return
        bad = np.zeros(len(window), np.bool_)
        for piece in window.bad_pieces:
            bad[piece.place : piece.place + piece.stop - piece.start] = True
        if self._on_error == "skip":
            window.bad = bad
            return
        good = np.flatnonzero(~bad)
        if not len(good):
            raise DecodeError(
                f"all {len(window.bad_pieces)} row groups of a window are bad, so no row of it can replace them; look at the "
                "files that loader.bad_samples names"
            )
        rows, where = np.flatnonzero(bad), window.window
        key = key64(self._seed, where.epoch, where.lane, where.number, 0x7265706C)
        chosen = good[(mix64(rows.astype(np.uint64) ^ key) % np.uint64(len(good))).astype(np.int64)]
        self._replace(window, rows, chosen)
        for array in [] if window.lists is None else [*window.lists.starts, *window.lists.lengths]:
            array[rows] = array[chosen]
