"""Make a batch of rows from its span of positions: look up windows, gather rows, deliver."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.backends.device import Uploader
from datapipe.backends.slabs import SlabPool
from datapipe.backends.table_windows import Lists, LoadedWindow, WindowStore
from datapipe.backends.tables_arrow import lists_of, pack
from datapipe.columns.layout import Matrix, MatrixLayout
from datapipe.columns.lists import ragged_rows
from datapipe.containers.tables.rows import GroupReader
from datapipe.core.errors import DecodeError, IntegrityError
from datapipe.core.observe import Observer, Stage, StageEvent
from datapipe.index.tables import TableIndex
from datapipe.loader.jagged import Jagged
from datapipe.loader.kept_rows import KeptRows
from datapipe.loader.object_pool import ObjectPool
from datapipe.loader.policy import BadSample, BadSampleLog
from datapipe.loader.table_options import TableOptions
from datapipe.order.plan import BatchSpan, Plan, Tail
from datapipe.order.row_order import Piece, RowRun, RunOrder, ShuffleWindow


@dataclass(slots=True)
class RowBatch:
    """One batch in the making. Several threads may gather parts of it at once: each writes rows of its own."""

    span: BatchSpan
    parts: list[tuple[int, LoadedWindow, RowRun]]  # first row of the batch, and the run whose rows follow from there
    ahead: list[LoadedWindow]  # windows that later steps need
    matrices: list[torch.Tensor]  # (b, width) each
    arrays: list[NDArray[Any]]  # the same memory
    good: NDArray[np.bool_]  # (b,) False for rows of row groups that are left out
    lists: dict[int, list[tuple[NDArray[Any], NDArray[np.int64]]]] = field(default_factory=dict)  # by first row: each column's

    def __len__(self) -> int:
        return len(self.span)


class MatrixMemory:
    """Leases (rows, width) tensors of one matrix each. Thread-safe, without a lock: two pools made at once do no harm.

    A tensor that is held keeps only its own memory: whoever collects the labels of an epoch does not keep the features.
    """

    def __init__(self, matrix: Matrix, *, open_pool: Callable[[int], SlabPool]) -> None:
        self._matrix = matrix
        self._open_pool = open_pool
        self._dtype: torch.dtype = getattr(torch, matrix.dtype)
        self._pool: SlabPool | None = None

    def lease(self, num_rows: int, *, room: int = 0) -> torch.Tensor:
        """Return (num_rows, width), uninitialised, the caller's until its last view is freed. `room`: rows to allocate for."""
        row_nbytes = self._matrix.row_nbytes
        nbytes = max(num_rows, room, 1) * row_nbytes
        pool = self._pool
        if pool is None or pool.nbytes < nbytes:
            pool = self._pool = self._open_pool(nbytes)
        flat = torch.from_numpy(pool.lease()[: num_rows * row_nbytes])
        return flat.view(self._dtype).view(num_rows, self._matrix.width)


@dataclass(frozen=True)
class TableParts:
    """The parts that all passes of a loader share. Thread-safe."""

    index: TableIndex
    layout: MatrixLayout
    options: TableOptions
    bad_samples: BadSampleLog
    observer: Observer
    batches: Sequence[MatrixMemory]
    windows: Sequence[MatrixMemory]
    workers: ObjectPool[GroupReader]
    uploader: Uploader | None
    enter_thread: Callable[[], None] | None
    kept: KeptRows | None = None

    def lease_batch(self, span: BatchSpan, parts: list[tuple[int, LoadedWindow, RowRun]], ahead: list[LoadedWindow]) -> RowBatch:
        """Memory for the rows of a span."""
        matrices = [memory.lease(len(span), room=self.options.batch_size) for memory in self.batches]
        return RowBatch(span, parts, ahead, matrices, [matrix.numpy() for matrix in matrices], np.ones(len(span), np.bool_))

    def blocks(self, batch: RowBatch) -> list[range]:
        """The rows of each block of a batch."""
        size = self.options.block_size_of(len(batch))
        return [range(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]

    def hand_over(self, batch: RowBatch) -> Any:
        """The matrices of a batch as the user gets them, or their arrival on a device."""
        matrices = batch.matrices
        if not batch.good.all():
            kept = torch.from_numpy(np.flatnonzero(batch.good))
            matrices = [matrix.index_select(0, kept) for matrix in matrices]
        result = self._put_together(batch, matrices)
        transform = self.options.batch_transform
        if self.uploader is not None:
            return self.uploader.upload(result, then=transform, step=batch.span.step, num_samples=len(batch))
        return result if transform is None else transform(result)

    def _put_together(self, batch: RowBatch, matrices: list[torch.Tensor]) -> Any:
        layout = self.layout
        handed = [matrix.view(-1) if kind.is_vector else matrix for kind, matrix in zip(layout.matrices, matrices, strict=True)]
        groups: dict[str, Any] = {kind.name: one for kind, one in zip(layout.groups, handed, strict=False)}
        groups |= jagged_of(layout, batch)
        x: Any = next(iter(groups.values())) if len(groups) == 1 else {name: groups[name] for name in layout.names or groups}
        answer = [] if layout.label is None else [handed[-1]]
        if self.options.tail is Tail.MASK:
            real = np.arange(len(batch)) < batch.span.num_real
            answer.append(torch.from_numpy(real[batch.good]))
        return (x, *answer) if answer else x

    def lease_window(self, num_rows: int, room: int) -> list[NDArray[Any]]:
        """Return memory for a window: (num_rows, width) of each matrix. `room`: rows of the largest window."""
        return [memory.lease(num_rows, room=room).numpy() for memory in self.windows]

    def fill(self, reader: GroupReader, window: LoadedWindow, piece: Piece) -> None:
        """Read a piece of a window into its place. Raises what the reader and `pack` raise."""
        start_ns = time.perf_counter_ns()
        group = self.index.group(piece.group)
        arrays = reader.read(group)
        num = piece.stop - piece.start
        nbytes = sum(array.get_total_buffer_size() for array in arrays.values())
        self.observe(Stage.READ, window.step, start_ns, num, nbytes)
        start_ns = time.perf_counter_ns()
        pack(arrays, self.layout, rows=range(piece.start, piece.stop), out=window.arrays, place=piece.place, group=group)
        if window.lists is not None:
            rows = range(piece.start, piece.stop)
            window.lists.pieces[piece.place] = lists_of(arrays, self.layout, rows=rows, group=group)
        if self.kept is not None:
            filled = slice(piece.place, piece.place + num)
            self.kept.put(int(self.index.starts[piece.group]) + piece.start, [array[filled] for array in window.arrays])
        self.observe(Stage.DECODE, window.step, start_ns, num)

    def keep(self, group: int, start: int, stop: int) -> None:
        """Read some rows of a row group for the cache alone. Raises what the reader and `pack` raise."""
        assert self.kept is not None
        reader = self.workers.borrow()
        arrays = reader.read(self.index.group(group))
        self.workers.give_back(reader)
        made = [np.empty((stop - start, matrix.width), matrix.dtype) for matrix in self.layout.matrices]
        pack(arrays, self.layout, rows=range(start, stop), out=made, place=0, group=self.index.group(group))
        self.kept.put(int(self.index.starts[group]) + start, made)

    def note_bad(self, window: LoadedWindow, piece: Piece, error: DecodeError | IntegrityError) -> None:
        """Record a row group that is skipped or replaced."""
        group = self.index.group(piece.group)
        first = int(self.index.starts[piece.group]) + piece.start
        where = f"{group} ({piece.stop - piece.start} rows from row {first} of the table)"
        self.bad_samples.add(BadSample(window.window.epoch, window.step, first, where, str(error)))

    def observe(self, stage: Stage, step: int, start_ns: int, num_samples: int, nbytes: int = 0) -> None:
        """Report to the observer a stage that ends now."""
        self.observer(StageEvent(stage, step, start_ns, time.perf_counter_ns() - start_ns, num_samples, nbytes))


def jagged_of(layout: MatrixLayout, batch: RowBatch) -> dict[str, Jagged]:
    """The groups of lists of a batch, key by key."""
    found, place = {}, 0
    parts = [part for _, part in sorted(batch.lists.items())]
    for group in layout.lists:
        columns = range(place, place + len(group.columns))
        place = columns.stop
        lengths = np.concatenate([part[number][1] for number in columns for part in parts])
        if not batch.good.all():
            lengths = lengths.reshape(len(columns), -1)[:, batch.good].ravel()  # the others' lists are empty
        values = np.concatenate([part[number][0] for number in columns for part in parts])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        keys = tuple(column.name for column in group.columns)
        found[group.name] = Jagged(torch.from_numpy(values), torch.from_numpy(lengths), torch.from_numpy(offsets), keys)
    return found


def _gathered(lists: Lists, chosen: slice | NDArray[np.int64]) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
    found = []
    for values, starts, lengths in zip(lists.values, lists.starts, lists.lengths, strict=True):
        mine = lengths[chosen]
        found.append((values[ragged_rows(mine, starts[chosen])], mine))
    return found


@dataclass(frozen=True)
class TableMaker:
    """Makes the batches of one pass. Thread-safe. See `making.Maker`."""

    parts: TableParts
    plan: Plan
    order: RunOrder
    seed: int
    first_step: int
    dali: None = None
    _store: WindowStore[GroupReader] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        store = WindowStore(
            self.order,
            seed=self.seed,
            first_step=self.first_step,
            # Refers to `parts` rather than to the maker, so that no cycle keeps windows alive.
            lease=partial(self.parts.lease_window, room=self.order.max_window),
            fill=self.parts.fill,
            on_bad=self.parts.note_bad,
            on_error=self.parts.options.on_error,
            num_lists=sum(len(group.columns) for group in self.parts.layout.lists),
        )
        object.__setattr__(self, "_store", store)

    @property
    def options(self) -> TableOptions:
        return self.parts.options

    @property
    def observer(self) -> Observer:
        return self.parts.observer

    @property
    def workers(self) -> ObjectPool[GroupReader]:
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
        self.parts.observe(Stage.PLAN, span.step, start_ns, len(span))
        return batch

    def blocks(self, batch: RowBatch) -> list[range]:
        """Return the rows of each block."""
        return self.parts.blocks(batch)

    def spare(self, batch: RowBatch) -> list[Callable[[GroupReader], object]]:
        """Return work that reads row groups of windows that later steps need."""
        return [partial(self._store.fill_ahead, window.window) for window in batch.ahead for _ in window.pending]

    def load_block(self, batch: RowBatch, rows: range, worker: GroupReader) -> None:
        """Gather some rows. Raises what reading their windows raised."""
        spent_ns = 0
        for place, window, run in batch.parts:
            first, end = max(rows.start, place), min(rows.stop, place + len(run))
            if first >= end:
                continue
            self._store.ensure(window, worker)
            start_ns = time.perf_counter_ns()
            chosen = window.rows_of(run, first - place, end - place)
            for source, target in zip(window.arrays, batch.arrays, strict=True):
                if isinstance(chosen, slice):
                    target[first:end] = source[chosen]
                else:
                    np.take(source, chosen, axis=0, out=target[first:end], mode="clip")  # "raise" would gather into a copy
            if window.lists is not None:
                batch.lists[first] = _gathered(window.lists, chosen)
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
