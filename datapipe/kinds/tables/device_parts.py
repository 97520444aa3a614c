"""The parts that make batches of rows on a device: windows that cuDF fills, rows gathered by torch.

Work runs on two kinds of streams. Each reader decodes and packs on a stream of its own, and records an event for what it
filled. Batches are gathered on one stream, which waits for those events; the consumer's stream waits for the event of its batch.
Windows and batches are allocated on the gathering stream, so memory of a dropped window is reused only after what was gathered
from it. The host waits only inside libcudf, in a reader's thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.containers.tables.rows import check_unchanged
from datapipe.core.observe import Stage
from datapipe.kernel.cuda_runtime import CudaDevice
from datapipe.kernel.device import DeviceTransfer
from datapipe.kernel.device_runtime import Event, Stream
from datapipe.kernel.kind import note_stage
from datapipe.kernel.pools import ObjectPool
from datapipe.kernel.pytree import tensors_of
from datapipe.kinds.tables.batches import named_batch
from datapipe.kinds.tables.cudf.library import library, stream_ordered_memory
from datapipe.kinds.tables.cudf.packing import DevicePacker, PinnedUploads, pack
from datapipe.kinds.tables.cudf.reader import CudfReader
from datapipe.kinds.tables.parts import LoadedWindow, RowBatch, TableSetup
from datapipe.order.plan import BatchSpan
from datapipe.order.row_order import GroupPart

_ROWS_AT_ONCE = 1 << 20  # of row groups that cuDF reads together: fewer do not keep a large GPU busy


@dataclass(frozen=True, slots=True)
class DeviceWindow:
    """Memory for a window on a device."""

    tensors: list[torch.Tensor]  # (rows, width) of each matrix
    ready: Event  # the memory may be written
    filled: list[Event] = field(default_factory=list)  # one for each filled part


@dataclass(frozen=True)
class DeviceTableParts:
    """The parts that all passes of a loader share, with windows on a device. Thread-safe. See `TableParts`."""

    setup: TableSetup
    workers: ObjectPool[CudfReader]
    runtime: CudaDevice
    stream: Stream  # of windows and batches
    packer: DevicePacker
    uploads: PinnedUploads
    parts_at_once: int

    @classmethod
    def of(cls, setup: TableSetup, runtime: CudaDevice) -> DeviceTableParts:
        """Return the parts. Call it in the consumer's thread: it creates streams there."""
        index, layout, found = setup.index, setup.layout, library()
        uploads = PinnedUploads(runtime, max_free=setup.options.depth + 2)
        stream = runtime.new_stream()
        with runtime.under(stream):
            memory = stream_ordered_memory(found, runtime.device)
        return cls(
            setup,
            workers=ObjectPool(
                lambda: CudfReader(layout.columns, library=found, runtime=runtime, memory=memory, check=check_unchanged)
            ),
            runtime=runtime,
            stream=stream,
            packer=DevicePacker(layout, runtime=runtime, uploads=uploads),
            uploads=uploads,
            parts_at_once=max(1, _ROWS_AT_ONCE * index.num_groups // max(1, len(index))),
        )

    def lease_batch(self, span: BatchSpan) -> RowBatch:
        return RowBatch(span, self._allocated(len(span)), [], np.ones(len(span), np.bool_))

    def blocks(self, batch: RowBatch) -> list[range]:
        return [range(len(batch))] if len(batch) else []  # a thread only queues work

    def lease_window(self, num_rows: int, room: int) -> DeviceWindow:
        tensors = [tensor[:num_rows] for tensor in self._allocated(max(num_rows, room))]
        return DeviceWindow(tensors, self.runtime.record_event(self.stream))

    def fill(self, reader: CudfReader, window: LoadedWindow, pieces: Sequence[GroupPart]) -> None:
        observer = self.setup.observer
        start_ns, runtime, memory = time.perf_counter_ns(), self.runtime, window.arrays
        pieces = sorted(pieces, key=lambda piece: piece.group)  # so that the groups of one file follow each other
        groups = [self.setup.index.group(piece.group) for piece in pieces]
        columns = reader.read(groups)
        num_rows, kept = sum(piece.stop - piece.start for piece in pieces), list[object](columns.values())
        note_stage(observer, Stage.READ, window.step, start_ns, num_rows)
        start_ns = time.perf_counter_ns()
        runtime.wait_event(reader.stream, memory.ready)
        try:
            with runtime.under(reader.stream):
                features = self.packer.features(columns, groups[0], kept)
                before = 0
                for piece, group in zip(pieces, groups, strict=True):
                    rows = range(before + piece.start, before + piece.stop)
                    pack(features, rows=rows, out=memory.tensors, place=piece.place)
                    before += group.num_rows
        finally:  # also after an error, since work may be queued
            for tensor in memory.tensors:
                runtime.record_stream(tensor, reader.stream)
            event = runtime.record_event(reader.stream)
            runtime.pending.add(event, kept)
        memory.filled.append(event)
        note_stage(observer, Stage.DECODE, window.step, start_ns, num_rows)

    def replace(self, window: LoadedWindow, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        self._join(window)
        with self.runtime.under(self.stream):
            targets, sources = self.uploads.to_device(rows), self.uploads.to_device(others)
            for tensor in window.arrays.tensors:
                tensor.index_copy_(0, targets, tensor.index_select(0, sources))

    def gather(self, batch: RowBatch, window: LoadedWindow, chosen: slice | NDArray[np.int64], first: int) -> None:
        self._join(window)
        with self.runtime.under(self.stream):
            if isinstance(chosen, slice):
                for source, target in zip(window.arrays.tensors, batch.matrices, strict=True):
                    target[first : first + chosen.stop - chosen.start].copy_(source[chosen])
                return
            rows = self.uploads.to_device(chosen)
            for source, target in zip(window.arrays.tensors, batch.matrices, strict=True):
                torch.index_select(source, 0, rows, out=target[first : first + len(chosen)])

    def hand_over(self, batch: RowBatch) -> DeviceTransfer:
        runtime, transform = self.runtime, self.setup.options.batch_transform
        start_ns = time.perf_counter_ns()
        runtime.pending.reap()
        with runtime.under(self.stream):
            matrices = batch.matrices
            if not batch.good.all():
                rows = self.uploads.to_device(np.flatnonzero(batch.good))
                matrices = [matrix.index_select(0, rows) for matrix in matrices]
            result = named_batch(self.setup, batch, matrices, to_tensor=self.uploads.to_device)
            if transform is not None:
                result = transform(result)
        event = runtime.record_event(self.stream)
        tensors = [tensor for tensor in tensors_of(result) if tensor.device == runtime.device]
        note_stage(self.setup.observer, Stage.COPY, batch.span.step, start_ns, len(batch))
        return DeviceTransfer(result, tensors, event, runtime)

    def _join(self, window: LoadedWindow) -> None:
        """Order the gathering stream after what filled a window."""
        for event in window.arrays.filled:
            self.runtime.wait_event(self.stream, event)

    def _allocated(self, num_rows: int) -> list[torch.Tensor]:
        with self.runtime.under(self.stream):
            return [
                torch.empty((num_rows, matrix.width), dtype=getattr(torch, matrix.dtype), device=self.runtime.device)
                for matrix in self.setup.layout.matrices
            ]
