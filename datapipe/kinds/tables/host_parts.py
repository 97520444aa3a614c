"""The parts that make batches of rows in host memory: windows that Arrow fills, rows gathered by numpy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.containers.tables.rows import GroupReader
from datapipe.core.observe import Stage
from datapipe.core.ranges import ranges
from datapipe.index.tables import ColumnKind
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.kind import note_stage
from datapipe.kernel.pools import BatchMemory, ObjectPool, SlabPool
from datapipe.kinds.tables.arrow import lists_of, pack
from datapipe.kinds.tables.batches import named_batch
from datapipe.kinds.tables.jagged import jagged_of
from datapipe.kinds.tables.kept_rows import KeptRows
from datapipe.kinds.tables.parts import Lists, LoadedWindow, RowBatch, TableSetup
from datapipe.order.plan import BatchSpan
from datapipe.order.row_order import GroupPart


@dataclass(frozen=True, slots=True)
class HostTableParts:
    """The parts that all passes of a loader share, with windows in host memory. Thread-safe. See `TableParts`.

    Each matrix has memory of its own: whoever collects the labels of an epoch does not keep the features.
    """

    setup: TableSetup
    batches: Sequence[BatchMemory]
    windows: Sequence[BatchMemory]
    workers: ObjectPool[GroupReader]
    delivery: Delivery
    kept: KeptRows | None
    parts_at_once: int = 1  # a row group is work enough for a thread

    @classmethod
    def of(cls, setup: TableSetup, device: torch.device, kept: KeptRows | None) -> HostTableParts:
        """Return the parts. Call it in the consumer's thread: for a GPU it creates a stream there."""
        layout, options = setup.layout, setup.options

        def open_window_pool(nbytes: int) -> SlabPool:
            return SlabPool(nbytes, max_free=2 * max(1, setup.window_nbytes // max(1, nbytes)))

        delivery = Delivery.to(device, options, setup.observer)
        names = [column.name for column in layout.columns]
        room = min(options.batch_size, len(setup.index))
        texts = [column.name for column in layout.columns if column.kind is ColumnKind.TEXT]
        return cls(
            setup,
            batches=[delivery.memory((matrix.width,), room=room) for matrix in layout.matrices],
            windows=[BatchMemory((matrix.width,), open_pool=open_window_pool) for matrix in layout.matrices],
            workers=ObjectPool(lambda: GroupReader(names, dictionaries=texts)),
            delivery=delivery,
            kept=kept,
        )

    @property
    def runtime(self) -> DeviceRuntime | None:
        return self.delivery.runtime

    def lease_batch(self, span: BatchSpan) -> RowBatch:
        matrices = self._leased(self.batches, len(span))
        return RowBatch(span, matrices, [matrix.numpy() for matrix in matrices], np.ones(len(span), np.bool_))

    def lease_window(self, num_rows: int, room: int) -> list[NDArray[Any]]:
        return [tensor.numpy() for tensor in self._leased(self.windows, num_rows, room)]

    def _leased(self, memories: Sequence[BatchMemory], num_rows: int, room: int = 0) -> list[torch.Tensor]:
        dtypes = [getattr(torch, matrix.dtype) for matrix in self.setup.layout.matrices]
        return [memory.lease(num_rows, dtype, room=room) for memory, dtype in zip(memories, dtypes, strict=True)]

    def blocks(self, batch: RowBatch) -> list[range]:
        return self.setup.options.blocks(len(batch))

    def hand_over(self, batch: RowBatch) -> Any:
        matrices = batch.matrices
        if not batch.good.all():
            kept = torch.from_numpy(np.flatnonzero(batch.good))
            matrices = [matrix.index_select(0, kept) for matrix in matrices]
        result = named_batch(self.setup, batch, matrices, jagged=jagged_of(self.setup.layout, batch.lists, batch.good))
        return self.delivery.deliver(result, step=batch.span.step, num_samples=len(batch))

    def fill(self, reader: GroupReader, window: LoadedWindow, pieces: Sequence[GroupPart]) -> None:
        (piece,), index, layout, observer = pieces, self.setup.index, self.setup.layout, self.setup.observer
        start_ns = time.perf_counter_ns()
        group = index.group(piece.group)
        arrays = reader.read(group)
        num = piece.stop - piece.start
        nbytes = sum(array.get_total_buffer_size() for array in arrays.values())
        note_stage(observer, Stage.READ, window.step, start_ns, num, nbytes=nbytes)
        start_ns = time.perf_counter_ns()
        pack(arrays, layout, rows=range(piece.start, piece.stop), out=window.arrays, place=piece.place, group=group)
        if window.lists is not None:
            rows = range(piece.start, piece.stop)
            window.lists.pieces[piece.place] = lists_of(arrays, layout, rows=rows, group=group)
        if self.kept is not None:
            filled = slice(piece.place, piece.place + num)
            self.kept.put(int(index.starts[piece.group]) + piece.start, [array[filled] for array in window.arrays])
        note_stage(observer, Stage.DECODE, window.step, start_ns, num)

    def gather(self, batch: RowBatch, window: LoadedWindow, chosen: slice | NDArray[np.int64], first: int) -> None:
        num = chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen)
        for source, target in zip(window.arrays, batch.arrays, strict=True):
            if isinstance(chosen, slice):
                target[first : first + num] = source[chosen]
            else:
                source.take(chosen, axis=0, out=target[first : first + num], mode="clip")  # "raise" would gather into a copy
        if window.lists is not None:
            batch.lists[first] = _gathered(window.lists, chosen)

    def replace(self, window: LoadedWindow, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        for array in window.arrays:
            array[rows] = array[others]

    def keep(self, group: int, start: int, stop: int) -> None:
        """Read some rows of a row group for the cache alone. Raises what the reader and `pack` raise."""
        assert self.kept is not None
        reader = self.workers.borrow()
        arrays = reader.read(self.setup.index.group(group))
        self.workers.give_back(reader)
        made = [np.empty((stop - start, matrix.width), matrix.dtype) for matrix in self.setup.layout.matrices]
        pack(arrays, self.setup.layout, rows=range(start, stop), out=made, place=0, group=self.setup.index.group(group))
        self.kept.put(int(self.setup.index.starts[group]) + start, made)


def _gathered(lists: Lists, chosen: slice | NDArray[np.int64]) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
    found = []
    for values, starts, lengths in zip(lists.values, lists.starts, lists.lengths, strict=True):
        mine = lengths[chosen]
        found.append((values[ranges(starts[chosen], mine)], mine))
    return found
