"""The windows of a pass: memory for rows that are shuffled with each other, filled by row groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import DecodeError, IntegrityError
from datapipe.kernel.bad_samples import BadSample
from datapipe.kernel.kind import SharedPieces
from datapipe.order.draws import Ints, key64, mix64
from datapipe.order.row_order import GroupPart, RowRun, RunOrder, ShuffleWindow

if TYPE_CHECKING:
    from datapipe.kinds.tables.batches import TableParts


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
    shuffled: NDArray[np.int64] | None = None  # (rows,) row at each shuffled place; None: in their own order
    bad: NDArray[np.bool_] | None = None  # (rows,) rows to be left out
    bad_parts: list[GroupPart] = field(default_factory=list)
    lists: Lists | None = None  # of the columns of lists, where there are any

    def __len__(self) -> int:
        return len(self.window)

    def rows_of(self, run: RowRun, start: int, stop: int) -> slice | NDArray[np.int64]:
        """Return the window's rows at the places `start` to `stop` of a run."""
        places = slice(run.start + start, run.start + stop)
        return places if self.shuffled is None else self.shuffled[places]


class ShuffledWindows(SharedPieces):
    """The windows of one pass, as pieces that batches share: each is loaded by row groups. Thread-safe."""

    def __init__(self, parts: TableParts, order: RunOrder, *, seed: int) -> None:
        self.parts_at_once = parts.parts_at_once
        self._parts, self._setup, self._order, self._seed = parts, parts.setup, order, seed
        self._num_lists = sum(len(group.columns) for group in parts.setup.layout.lists)

    def open(self, key: Any, step: int) -> tuple[LoadedWindow, list[GroupPart]]:
        window = LoadedWindow(key, step, self._parts.lease_window(len(key), room=self._order.max_window))
        window.lists = Lists(self._num_lists) if self._num_lists else None
        return window, self._order.parts(key)

    def load(self, window: LoadedWindow, parts: Sequence[GroupPart], worker: Any) -> None:
        self._parts.fill(worker, window, parts)

    def leave_out(self, window: LoadedWindow, part: GroupPart, reason: DecodeError | IntegrityError) -> None:
        window.bad_parts.append(part)
        index = self._setup.index
        first = int(index.starts[part.group]) + part.start
        where = f"{index.group(part.group)} ({part.stop - part.start} rows from row {first} of the table)"
        self._setup.bad_samples.add(BadSample(window.window.epoch, window.step, first, where, str(reason)))

    def complete(self, window: LoadedWindow) -> None:
        window.shuffled = self._order.shuffled(window.window)
        if window.lists is not None:
            window.lists.put_together(len(window))
        if not window.bad_parts:
            return
        bad = np.zeros(len(window), np.bool_)
        for piece in window.bad_parts:
            bad[piece.place : piece.place + piece.stop - piece.start] = True
        if self._setup.options.on_error == "skip":
            window.bad = bad
            return
        good = np.flatnonzero(~bad)
        if not len(good):
            raise DecodeError(
                f"all {len(window.bad_parts)} row groups of a window are bad, so no row of it can replace them; look at the "
                "files that loader.bad_samples names"
            )
        rows, where = np.flatnonzero(bad), window.window
        key = key64(self._seed, where.epoch, where.lane, where.number, 0x7265706C)
        chosen = good[(mix64(rows.astype(np.uint64) ^ key) % np.uint64(len(good))).astype(np.int64)]
        self._parts.replace(window, rows, chosen)
        for array in [] if window.lists is None else [*window.lists.starts, *window.lists.lengths]:
            array[rows] = array[chosen]
