"""The parts that make batches of rows in host memory: windows that Arrow fills, rows gathered by numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.backends.device import Uploader
from datapipe.backends.slabs import SlabPool
from datapipe.backends.table_windows import Lists, LoadedWindow
from datapipe.backends.tables_arrow import lists_of, pack
from datapipe.columns.layout import Matrix, MatrixLayout
from datapipe.columns.values import ragged_rows
from datapipe.containers.tables.rows import GroupReader
from datapipe.core.observe import Observer, Stage
from datapipe.index.tables import TableIndex
from datapipe.loader.object_pool import ObjectPool
from datapipe.loader.policy import BadSampleLog
from datapipe.loader.tables.batches import RowBatch, named_batch, observe
from datapipe.loader.tables.jagged import Jagged
from datapipe.loader.tables.kept_rows import KeptRows
from datapipe.loader.tables.options import TableOptions
from datapipe.order.plan import BatchSpan
from datapipe.order.row_order import Piece, RowRun


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
class HostTableParts:
    """The parts that all passes of a loader share, with windows in host memory. Thread-safe. See `TableParts`."""

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
    pieces_at_once: int = 1  # a row group is work enough for a thread

    def lease_batch(self, span: BatchSpan, parts: list[tuple[int, LoadedWindow, RowRun]], ahead: list[LoadedWindow]) -> RowBatch:
        """Return memory for the rows of a span."""
        matrices = [memory.lease(len(span), room=self.options.batch_size) for memory in self.batches]
        return RowBatch(span, parts, ahead, matrices, [matrix.numpy() for matrix in matrices], np.ones(len(span), np.bool_))

    def blocks(self, batch: RowBatch) -> list[range]:
        """Return the rows of each block of a batch."""
        size = self.options.block_size_of(len(batch))
        return [range(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]

    def hand_over(self, batch: RowBatch) -> Any:
        """Return the matrices of a batch as the user gets them, or their arrival on a device."""
        matrices = batch.matrices
        if not batch.good.all():
            kept = torch.from_numpy(np.flatnonzero(batch.good))
            matrices = [matrix.index_select(0, kept) for matrix in matrices]
        result = named_batch(self.layout, self.options, batch, matrices, jagged=jagged_of(self.layout, batch))
        transform = self.options.batch_transform
        if self.uploader is not None:
            return self.uploader.upload(result, then=transform, step=batch.span.step, num_samples=len(batch))
        return result if transform is None else transform(result)

    def lease_window(self, num_rows: int, room: int) -> list[NDArray[Any]]:
        """Return memory for a window: (num_rows, width) of each matrix. `room`: rows of the largest window."""
        return [memory.lease(num_rows, room=room).numpy() for memory in self.windows]

    def fill(self, reader: GroupReader, window: LoadedWindow, pieces: Sequence[Piece]) -> None:
        """Read a piece of a window into its place. Raises what the reader and `pack` raise."""
        (piece,) = pieces
        start_ns = time.perf_counter_ns()
        group = self.index.group(piece.group)
        arrays = reader.read(group)
        num = piece.stop - piece.start
        nbytes = sum(array.get_total_buffer_size() for array in arrays.values())
        observe(self.observer, Stage.READ, window.step, start_ns, num, nbytes)
        start_ns = time.perf_counter_ns()
        pack(arrays, self.layout, rows=range(piece.start, piece.stop), out=window.arrays, place=piece.place, group=group)
        if window.lists is not None:
            rows = range(piece.start, piece.stop)
            window.lists.pieces[piece.place] = lists_of(arrays, self.layout, rows=rows, group=group)
        if self.kept is not None:
            filled = slice(piece.place, piece.place + num)
            self.kept.put(int(self.index.starts[piece.group]) + piece.start, [array[filled] for array in window.arrays])
        observe(self.observer, Stage.DECODE, window.step, start_ns, num)

    def gather(self, batch: RowBatch, window: LoadedWindow, chosen: slice | NDArray[np.int64], first: int) -> None:
        """Copy some rows of a window to rows of a batch from `first` on."""
        num = chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen)
        for source, target in zip(window.arrays, batch.arrays, strict=True):
            if isinstance(chosen, slice):
                target[first : first + num] = source[chosen]
            else:
                np.take(source, chosen, axis=0, out=target[first : first + num], mode="clip")  # "raise" would gather into a copy
        if window.lists is not None:
            batch.lists[first] = _gathered(window.lists, chosen)

    def replace(self, window: LoadedWindow, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Overwrite rows of a window with other rows of it."""
        for array in window.arrays:
            array[rows] = array[others]

    def keep(self, group: int, start: int, stop: int) -> None:
        """Read some rows of a row group for the cache alone. Raises what the reader and `pack` raise."""
        assert self.kept is not None
        reader = self.workers.borrow()
        arrays = reader.read(self.index.group(group))
        self.workers.give_back(reader)
        made = [np.empty((stop - start, matrix.width), matrix.dtype) for matrix in self.layout.matrices]
        pack(arrays, self.layout, rows=range(start, stop), out=made, place=0, group=self.index.group(group))
        self.kept.put(int(self.index.starts[group]) + start, made)


def jagged_of(layout: MatrixLayout, batch: RowBatch) -> dict[str, Jagged]:
    """Return the groups of lists of a batch, key by key."""
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
