"""Make a batch of rows from its span of positions: look up windows, gather rows, deliver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.backends.table_windows import LoadedWindow, WindowStore
from datapipe.columns.layout import MatrixLayout
from datapipe.core.errors import DecodeError, IntegrityError
from datapipe.core.observe import Observer, Stage, StageEvent
from datapipe.index.tables import TableIndex
from datapipe.loader.object_pool import ObjectPool
from datapipe.loader.policy import BadSample, BadSampleLog
from datapipe.loader.tables.options import TableOptions
from datapipe.order.plan import BatchSpan, Plan, Tail
from datapipe.order.row_order import Piece, RowRun, RunOrder, ShuffleWindow


@dataclass(slots=True)
class RowBatch:
    """One batch in the making. Several threads may gather parts of it at once: each writes rows of its own."""

    span: BatchSpan
    parts: list[tuple[int, LoadedWindow, RowRun]]  # first row of the batch, and the run whose rows follow from there
    ahead: list[LoadedWindow]  # windows that later steps need
    matrices: list[torch.Tensor]  # (b, width) each
    arrays: list[NDArray[Any]]  # the same memory, if it is the host's
    good: NDArray[np.bool_]  # (b,) False for rows of row groups that are left out
    lists: dict[int, list[tuple[NDArray[Any], NDArray[np.int64]]]] = field(default_factory=dict)  # by first row: each column's

    def __len__(self) -> int:
        return len(self.span)


class TableParts(Protocol):
    """The backend of a loader of tables, shared by all its passes. Thread-safe."""

    @property
    def index(self) -> TableIndex: ...

    @property
    def layout(self) -> MatrixLayout: ...

    @property
    def options(self) -> TableOptions: ...

    @property
    def observer(self) -> Observer: ...

    @property
    def bad_samples(self) -> BadSampleLog: ...

    @property
    def workers(self) -> ObjectPool[Any]:
        """The readers of row groups."""

    @property
    def enter_thread(self) -> Callable[[], None] | None:
        """Called first in each thread that makes batches."""

    @property
    def pieces_at_once(self) -> int:
        """Row groups that are best read together."""

    def lease_batch(self, span: BatchSpan, parts: list[tuple[int, LoadedWindow, RowRun]], ahead: list[LoadedWindow]) -> RowBatch:
        """Return memory for the rows of a span."""

    def lease_window(self, num_rows: int, room: int) -> Any:
        """Return memory for a window of (num_rows, width) matrices. `room`: rows of the largest window."""

    def fill(self, reader: Any, window: LoadedWindow, pieces: Sequence[Piece]) -> None:
        """Read pieces of a window into their places."""

    def replace(self, window: LoadedWindow, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Overwrite rows of a window with other rows of it."""

    def gather(self, batch: RowBatch, window: LoadedWindow, chosen: slice | NDArray[np.int64], first: int) -> None:
        """Copy some rows of a window to rows of a batch from `first` on."""

    def blocks(self, batch: RowBatch) -> list[range]:
        """Return the rows of each unit of work of a batch."""

    def hand_over(self, batch: RowBatch) -> Any:
        """Return the batch as the user gets it, or its arrival on a device."""


@dataclass(frozen=True)
class TableMaker:
    """Makes the batches of one pass. Thread-safe. See `batch_making.BatchMaker`."""

    parts: TableParts
    plan: Plan
    order: RunOrder
    seed: int
    first_step: int
    dali: None = None
    _store: WindowStore[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        store = WindowStore(
            self.order,
            seed=self.seed,
            first_step=self.first_step,
            # Refers to `parts` rather than to the maker, so that no cycle keeps windows alive.
            lease=partial(self.parts.lease_window, room=self.order.max_window),
            fill=self.parts.fill,
            replace=self.parts.replace,
            on_bad=partial(note_bad, self.parts.index, self.parts.bad_samples),
            on_error=self.parts.options.on_error,
            num_lists=sum(len(group.columns) for group in self.parts.layout.lists),
            pieces_at_once=self.parts.pieces_at_once,
        )
        object.__setattr__(self, "_store", store)

    @property
    def options(self) -> TableOptions:
        return self.parts.options

    @property
    def observer(self) -> Observer:
        return self.parts.observer

    @property
    def workers(self) -> ObjectPool[Any]:
        return self.parts.workers

    @property
    def enter_thread(self) -> Callable[[], None] | None:
        return self.parts.enter_thread

    def prepare(self, span: BatchSpan) -> RowBatch:
        """Look up the windows of a batch, and those to come; lease memory."""
        start_ns = time.perf_counter_ns()
        epoch = span.after.epoch
        runs = [run for start, stop in span.ranges() for run in self.order.runs(epoch, start, stop)]
        used, ahead = self._store.use(span.step, runs, self._ahead(span, runs) if self.options.num_workers else [])
        found, place = [], 0
        for window, run in zip(used, runs, strict=True):
            found.append((place, window, run))
            place += len(run)
        batch = self.parts.lease_batch(span, found, ahead)
        observe(self.observer, Stage.PLAN, span.step, start_ns, len(span))
        return batch

    def blocks(self, batch: RowBatch) -> list[range]:
        """Return the rows of each block."""
        return self.parts.blocks(batch)

    def spare(self, batch: RowBatch) -> list[Callable[[Any], object]]:
        """Return work that reads row groups of windows that later steps need."""
        return [
            partial(self._store.fill_ahead, window.window)
            for window in batch.ahead
            for _ in range(0, len(window.pending), self.parts.pieces_at_once)
        ]

    def load_block(self, batch: RowBatch, rows: range, worker: Any) -> None:
        """Gather some rows. Raises what reading their windows raised."""
        spent_ns = 0
        for place, window, run in batch.parts:
            first, end = max(rows.start, place), min(rows.stop, place + len(run))
            if first >= end:
                continue
            self._store.ensure(window, worker)
            start_ns = time.perf_counter_ns()
            chosen = window.rows_of(run, first - place, end - place)
            self.parts.gather(batch, window, chosen, first)
            if window.bad is not None:
                batch.good[first:end] = ~window.bad[chosen]
            spent_ns += time.perf_counter_ns() - start_ns
        self.observer(StageEvent(Stage.COLLATE, batch.span.step, time.perf_counter_ns() - spent_ns, spent_ns, len(rows)))

    def decode(self, batch: RowBatch, pipeline: object, worker: object) -> None:
        raise AssertionError("tables have no stage that decodes whole batches")

    def finish(self, batch: RowBatch) -> Any:
        """Return the matrices as the user gets them, or their arrival on a device."""
        batch.parts.clear()  # windows are not needed any more
        return self.parts.hand_over(batch)

    # -- windows --------------------------------------------------------------------------------

    def _ahead(self, span: BatchSpan, runs: list[RowRun]) -> list[ShuffleWindow]:
        """Return the windows that follow those of a step, and those of the step after it."""
        found = [self.order.following(run.window) for run in runs]
        if span.step + 1 < self.plan.num_steps:
            following = self.plan.span(span.after.epoch, span.step + 1)
            found += [run.window for start, stop in following.ranges() for run in self.order.runs(span.after.epoch, start, stop)]
        used = {run.window for run in runs}
        return [window for window in dict.fromkeys(found) if window is not None and window not in used]


def named_batch(
    layout: MatrixLayout,
    options: TableOptions,
    batch: RowBatch,
    matrices: list[torch.Tensor],
    *,
    jagged: Mapping[str, Any] = {},
    to_tensor: Callable[[NDArray[Any]], torch.Tensor] = torch.from_numpy,
) -> Any:
    """Return the matrices of a batch as the user gets them: `x`, or a tuple of x, the label, and which rows are no repeats."""
    handed = [matrix.view(-1) if kind.is_vector else matrix for kind, matrix in zip(layout.matrices, matrices, strict=True)]
    groups: dict[str, Any] = {kind.name: one for kind, one in zip(layout.groups, handed, strict=False)}
    groups |= jagged
    x: Any = next(iter(groups.values())) if len(groups) == 1 else {name: groups[name] for name in layout.names or groups}
    answer = [] if layout.label is None else [handed[-1]]
    if options.tail is Tail.MASK:
        real = np.arange(len(batch)) < batch.span.num_real
        answer.append(to_tensor(real[batch.good]))
    return (x, *answer) if answer else x


def note_bad(
    index: TableIndex, log: BadSampleLog, window: LoadedWindow, piece: Piece, error: DecodeError | IntegrityError
) -> None:
    """Record a row group that is skipped or replaced."""
    group = index.group(piece.group)
    first = int(index.starts[piece.group]) + piece.start
    where = f"{group} ({piece.stop - piece.start} rows from row {first} of the table)"
    log.add(BadSample(window.window.epoch, window.step, first, where, str(error)))


def observe(observer: Observer, stage: Stage, step: int, start_ns: int, num_samples: int, nbytes: int = 0) -> None:
    """Report to the observer a stage that ends now."""
    observer(StageEvent(stage, step, start_ns, time.perf_counter_ns() - start_ns, num_samples, nbytes))
