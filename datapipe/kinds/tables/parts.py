"""The parts of a loader of tables: what a backend does for its batches and windows, and the memory of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.columns.layout import MatrixLayout
from datapipe.core.observe import Observer
from datapipe.index.tables import TableIndex
from datapipe.kernel.bad_samples import BadSampleLog
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.pools import ObjectPool
from datapipe.order.draws import Ints
from datapipe.order.plan import BatchSpan
from datapipe.order.row_order import GroupPart, RowRun, ShuffleWindow


@dataclass(frozen=True, slots=True)
class TableSetup:
    """The table, its layout, and the options that all parts of a loader of tables share."""

    index: TableIndex
    layout: MatrixLayout
    options: LoaderOptions
    window_nbytes: int  # rows that are shuffled with each other, and read ahead
    bad_samples: BadSampleLog
    observer: Observer


@dataclass(slots=True)
class RowBatch:
    """One batch in the making. Several threads may gather parts of it at once: each writes rows of its own."""

    span: BatchSpan
    matrices: list[torch.Tensor]  # (b, width) each
    arrays: list[NDArray[Any]]  # the same memory, if it is the host's
    good: NDArray[np.bool_]  # (b,) False for rows of row groups that are left out
    runs: list[RowRun] = field(default_factory=list)  # of windows, which make up the batch one after the other
    lists: dict[int, list[tuple[NDArray[Any], NDArray[np.int64]]]] = field(default_factory=dict)  # by first row: each column's

    def __len__(self) -> int:
        return len(self.span)


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


class TableParts(Protocol):
    """The backend of a loader of tables, shared by all its passes. Thread-safe."""

    @property
    def setup(self) -> TableSetup: ...

    @property
    def workers(self) -> ObjectPool[Any]:
        """The readers of row groups."""

    @property
    def runtime(self) -> DeviceRuntime | None:
        """The device that batches go to; None if they stay in host memory."""

    @property
    def parts_at_once(self) -> int:
        """Row groups that are best read together."""

    def lease_batch(self, span: BatchSpan) -> RowBatch:
        """Return a batch with memory for the rows of a span."""

    def lease_window(self, num_rows: int, room: int) -> Any:
        """Return memory for a window of (num_rows, width) matrices. `room`: rows of the largest window."""

    def fill(self, reader: Any, window: LoadedWindow, pieces: Sequence[GroupPart]) -> None:
        """Read pieces of a window into their places. Raises what reading and packing raise."""

    def replace(self, window: LoadedWindow, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Overwrite rows of a window with other rows of it."""

    def gather(self, batch: RowBatch, window: LoadedWindow, chosen: slice | NDArray[np.int64], first: int) -> None:
        """Copy some rows of a window to rows of a batch from `first` on."""

    def blocks(self, batch: RowBatch) -> list[range]:
        """Return the rows of each unit of work of a batch."""

    def hand_over(self, batch: RowBatch) -> Any:
        """Return the batch as the user gets it, or its arrival on a device."""
