"""Make a batch of rows from its span of positions: look up windows or mapped rows, gather, deliver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.columns.layout import MatrixLayout
from datapipe.core.errors import DecodeError, IntegrityError
from datapipe.core.observe import Observer, Stage, StageEvent
from datapipe.index.tables import TableIndex
from datapipe.kernel.bad_samples import BadSample, BadSampleLog
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.tasks import ObjectPool
from datapipe.kinds.tables.arrow import RowGather
from datapipe.kinds.tables.windows import LoadedWindow, WindowStore
from datapipe.order.plan import BatchSpan, Plan, Tail
from datapipe.order.row_order import Piece, RowRun, RunOrder, ShuffleWindow


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
    parts: list[tuple[int, LoadedWindow, RowRun]] = field(default_factory=list)  # first row of the batch; the rows from there on
    ahead: list[LoadedWindow] = field(default_factory=list)  # windows that later steps need
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
    def pieces_at_once(self) -> int:
        """Row groups that are best read together."""

    def lease_batch(self, span: BatchSpan) -> RowBatch:
        """Return a batch with memory for the rows of a span."""

    def lease_window(self, num_rows: int, room: int) -> Any:
        """Return memory for a window of (num_rows, width) matrices. `room`: rows of the largest window."""

    def fill(self, reader: Any, window: LoadedWindow, pieces: Sequence[Piece]) -> None:
        """Read pieces of a window into their places. Raises what reading and packing raise."""

    def replace(self, window: LoadedWindow, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Overwrite rows of a window with other rows of it."""

    def gather(self, batch: RowBatch, window: LoadedWindow, chosen: slice | NDArray[np.int64], first: int) -> None:
        """Copy some rows of a window to rows of a batch from `first` on."""

    def blocks(self, batch: RowBatch) -> list[range]:
        """Return the rows of each unit of work of a batch."""

    def hand_over(self, batch: RowBatch) -> Any:
        """Return the batch as the user gets it, or its arrival on a device."""


class FromWindows:
    """Rows of shuffled windows, which are read as they become due."""

    def __init__(self, parts: TableParts, plan: Plan, order: RunOrder, *, seed: int, first_step: int) -> None:
        self._plan, self._order = plan, order
        self._gather, self._at_once = parts.gather, parts.pieces_at_once
        self._reads_ahead = parts.setup.options.num_workers > 0
        self._store: WindowStore[Any] = WindowStore(
            order,
            seed=seed,
            first_step=first_step,
            lease=partial(parts.lease_window, room=order.max_window),
            fill=parts.fill,
            replace=parts.replace,
            on_bad=partial(_note_bad, parts.setup),
            on_error=parts.setup.options.on_error,
            num_lists=sum(len(group.columns) for group in parts.setup.layout.lists),
            pieces_at_once=parts.pieces_at_once,
        )

    def prepare(self, batch: RowBatch) -> None:
        """Look up the windows of a batch, and those to come."""
        span = batch.span
        runs = self._runs(span)
        used, batch.ahead = self._store.use(span.step, runs, self._following(span, runs) if self._reads_ahead else [])
        place = 0
        for window, run in zip(used, runs, strict=True):
            batch.parts.append((place, window, run))
            place += len(run)

    def spare(self, batch: RowBatch) -> list[Callable[[Any], object]]:
        """Return work that reads row groups of windows that later steps need."""
        return [
            partial(self._store.fill_ahead, window.window)
            for window in batch.ahead
            for _ in range(0, len(window.pending), self._at_once)
        ]

    def load(self, batch: RowBatch, rows: range, worker: Any) -> int:
        """Gather some rows, and return the time that took without reading. Raises what reading their windows raised."""
        spent_ns = 0
        for place, window, run in batch.parts:
            first, end = max(rows.start, place), min(rows.stop, place + len(run))
            if first >= end:
                continue
            self._store.ensure(window, worker)
            start_ns = time.perf_counter_ns()
            chosen = window.rows_of(run, first - place, end - place)
            self._gather(batch, window, chosen, first)
            if window.bad is not None:
                batch.good[first:end] = ~window.bad[chosen]
            spent_ns += time.perf_counter_ns() - start_ns
        return spent_ns

    def _runs(self, span: BatchSpan) -> list[RowRun]:
        return [run for start, stop in span.ranges() for run in self._order.runs(span.after.epoch, start, stop)]

    def _following(self, span: BatchSpan, runs: list[RowRun]) -> list[ShuffleWindow]:
        """Return the windows that follow those of a step, and those of the step after it."""
        found = [self._order.following(run.window) for run in runs]
        if span.step + 1 < self._plan.num_steps:
            found += [run.window for run in self._runs(self._plan.span(span.after.epoch, span.step + 1))]
        used = {run.window for run in runs}
        return [window for window in dict.fromkeys(found) if window is not None and window not in used]


@dataclass(frozen=True, slots=True)
class FromMappedRows:
    """Rows that may be read in any order, gathered where they lie."""

    plan: Plan
    rows: RowGather

    def prepare(self, batch: RowBatch) -> None:
        """Do nothing: rows are not read ahead."""

    def spare(self, batch: RowBatch) -> list[Callable[[Any], object]]:
        """Return no work."""
        return []

    def load(self, batch: RowBatch, rows: range, worker: object) -> int:
        """Gather some rows, and return the time that took."""
        start_ns, span = time.perf_counter_ns(), batch.span
        positions = np.arange(span.start + rows.start, span.start + rows.stop, dtype=np.int64) % span.num_samples
        self.rows.gather(self.plan.order(span.after.epoch, positions), batch.arrays, rows.start)
        return time.perf_counter_ns() - start_ns


@dataclass(frozen=True, slots=True)
class TableMaker:
    """Makes the batches of one pass. Thread-safe. See `batch_making.BatchMaker`."""

    parts: TableParts
    rows: FromWindows | FromMappedRows
    dali: None = None

    @property
    def options(self) -> LoaderOptions:
        return self.parts.setup.options

    @property
    def observer(self) -> Observer:
        return self.parts.setup.observer

    @property
    def workers(self) -> ObjectPool[Any]:
        return self.parts.workers

    @property
    def runtime(self) -> DeviceRuntime | None:
        return self.parts.runtime

    def prepare(self, span: BatchSpan) -> RowBatch:
        """Lease memory for a batch, and look up where its rows are."""
        start_ns = time.perf_counter_ns()
        batch = self.parts.lease_batch(span)
        self.rows.prepare(batch)
        observe(self.observer, Stage.PLAN, span.step, start_ns, len(span))
        return batch

    def blocks(self, batch: RowBatch) -> list[range]:
        return self.parts.blocks(batch)

    def spare(self, batch: RowBatch) -> list[Callable[[Any], object]]:
        return self.rows.spare(batch)

    def load_block(self, batch: RowBatch, rows: range, worker: Any) -> None:
        """Gather some rows. Raises what reading them raised."""
        spent_ns = self.rows.load(batch, rows, worker)
        observe(self.observer, Stage.COLLATE, batch.span.step, time.perf_counter_ns() - spent_ns, len(rows))

    def decode(self, batch: RowBatch, pipeline: object, worker: object) -> None:
        raise AssertionError("tables have no stage that decodes whole batches")

    def finish(self, batch: RowBatch) -> Any:
        batch.parts.clear()  # windows are not needed any more
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


def observe(observer: Observer, stage: Stage, step: int, start_ns: int, num_samples: int, nbytes: int = 0) -> None:
    """Report to the observer a stage that ends now."""
    observer(StageEvent(stage, step, start_ns, time.perf_counter_ns() - start_ns, num_samples, nbytes))


def _note_bad(setup: TableSetup, window: LoadedWindow, piece: Piece, error: DecodeError | IntegrityError) -> None:
    """Record a row group that is skipped or replaced."""
    first = int(setup.index.starts[piece.group]) + piece.start
    where = f"{setup.index.group(piece.group)} ({piece.stop - piece.start} rows from row {first} of the table)"
    setup.bad_samples.add(BadSample(window.window.epoch, window.step, first, where, str(error)))
