"""Make a batch of rows from its span of positions: look up windows or mapped rows, gather, deliver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.columns.layout import MatrixLayout
from datapipe.core.observe import Observer, Stage
from datapipe.index.tables import TableIndex
from datapipe.kernel.bad_samples import BadSampleLog
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.kind import BatchMaker, Piece, Resources, note_stage
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.pools import ObjectPool
from datapipe.kinds.tables.arrow import RowGather
from datapipe.kinds.tables.windows import LoadedWindow
from datapipe.order.plan import BatchSpan, Plan, Tail
from datapipe.order.row_order import GroupPart, RowRun, RunOrder, ShuffleWindow


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


class Stretch(NamedTuple):
    """Rows of a block that come from one window."""

    run: RowRun
    begin: int  # place in the run
    first: int  # row of the batch
    end: int


@dataclass(frozen=True, slots=True)
class WindowMaker(BatchMaker):
    """Makes the batches of one pass of rows in shuffled windows, which are read as they become due. Thread-safe."""

    parts: TableParts
    plan: Plan
    order: RunOrder
    resources: Resources

    def begin(self, step: BatchSpan) -> RowBatch:
        start_ns = time.perf_counter_ns()
        batch = self.parts.lease_batch(step)
        batch.runs = self._runs(step)
        note_stage(self.parts.setup.observer, Stage.PLAN, step.step, start_ns, len(step))
        return batch

    def pieces(self, batch: RowBatch) -> list[Piece]:
        """Return the blocks, with their windows; `what` has a `Stretch` of each."""
        pieces: list[tuple[range, list[Stretch]]] = [(rows, []) for rows in self.parts.blocks(batch)]
        place = 0
        for run in batch.runs:
            for rows, stretches in pieces:
                first, end = max(rows.start, place), min(rows.stop, place + len(run))
                if first < end:
                    stretches.append(Stretch(run, first - place, first, end))
            place += len(run)
        return [Piece(rows, [one.run.window for one in stretches], stretches) for rows, stretches in pieces]

    def ahead(self, batch: RowBatch) -> list[ShuffleWindow]:
        """Return the windows that follow those of a step, and those of the step after it."""
        span, found = batch.span, [self.order.following(run.window) for run in batch.runs]
        if span.step + 1 < self.plan.num_steps:
            found += [run.window for run in self._runs(self.plan.span(span.after.epoch, span.step + 1))]
        used = {run.window for run in batch.runs}
        return [window for window in dict.fromkeys(found) if window is not None and window not in used]

    def fill(self, batch: RowBatch, piece: Piece, shared: Sequence[LoadedWindow], worker: object) -> tuple[()]:
        start_ns = time.perf_counter_ns()
        for window, (run, begin, first, end) in zip(shared, piece.what, strict=True):
            chosen = window.rows_of(run, begin, begin + end - first)
            self.parts.gather(batch, window, chosen, first)
            if window.bad is not None:
                batch.good[first:end] = ~window.bad[chosen]
        note_stage(self.parts.setup.observer, Stage.COLLATE, batch.span.step, start_ns, len(piece.rows))
        return ()

    def finish(self, batch: RowBatch) -> Any:
        return self.parts.hand_over(batch)

    def _runs(self, span: BatchSpan) -> list[RowRun]:
        """Return the runs of rows, each in one window, that make up a step."""
        return [run for start, stop in span.ranges() for run in self.order.runs(span.after.epoch, start, stop)]


@dataclass(frozen=True, slots=True)
class MappedRowMaker(BatchMaker):
    """Makes the batches of one pass of rows that may be read in any order, gathered where they lie. Thread-safe."""

    parts: TableParts
    plan: Plan
    rows: RowGather
    resources: Resources

    def begin(self, step: BatchSpan) -> RowBatch:
        start_ns = time.perf_counter_ns()
        batch = self.parts.lease_batch(step)
        note_stage(self.parts.setup.observer, Stage.PLAN, step.step, start_ns, len(step))
        return batch

    def pieces(self, batch: RowBatch) -> list[Piece]:
        return [Piece(rows) for rows in self.parts.blocks(batch)]

    def fill(self, batch: RowBatch, piece: Piece, shared: object, worker: object) -> tuple[()]:
        start_ns, span, rows = time.perf_counter_ns(), batch.span, piece.rows
        positions = np.arange(span.start + rows.start, span.start + rows.stop, dtype=np.int64) % span.num_samples
        self.rows.gather(self.plan.order(span.after.epoch, positions), batch.arrays, rows.start)
        note_stage(self.parts.setup.observer, Stage.COLLATE, span.step, start_ns, len(rows))
        return ()

    def finish(self, batch: RowBatch) -> Any:
        return self.parts.hand_over(batch)


def named_batch(
    setup: TableSetup,
    batch: RowBatch,
    matrices: list[torch.Tensor],
    *,
    jagged: Mapping[str, Any] = {},
    to_tensor: Callable[[NDArray[Any]], torch.Tensor] = torch.from_numpy,
) -> Any:
    """Return the matrices of a batch as the user gets them: `x`, or a tuple of x, the label, and which rows are no repeats."""
    layout = setup.layout
    handed = [matrix.view(-1) if kind.is_vector else matrix for kind, matrix in zip(layout.matrices, matrices, strict=True)]
    groups: dict[str, Any] = {kind.name: one for kind, one in zip(layout.groups, handed, strict=False)}
    groups |= jagged
    x: Any = next(iter(groups.values())) if len(groups) == 1 else {name: groups[name] for name in layout.names or groups}
    answer = [] if layout.label is None else [handed[-1]]
    if setup.options.tail is Tail.MASK:
        real = np.arange(len(batch)) < batch.span.num_real
        answer.append(to_tensor(real[batch.good]))
    return (x, *answer) if answer else x
