"""The parts that make batches of rows on a device: windows that cuDF fills, rows gathered by torch.

Work runs on two kinds of streams. Each reader decodes and packs on a stream of its own, and records an event for what it
filled. Batches are gathered on one stream, which waits for those events; the consumer's stream waits for the event of its batch.
Windows and batches are allocated on the gathering stream, so memory of a dropped window is reused only after what was gathered
from it. The host waits only inside libcudf, in a reader's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.backends.device import DeviceTransfer
from datapipe.backends.device_runtime import DeviceRuntime, Event, Stream
from datapipe.backends.pytree import tensors_of
from datapipe.backends.table_windows import LoadedWindow
from datapipe.backends.tables_cudf.packing import DevicePacker, PinnedUploads, pack
from datapipe.backends.tables_cudf.reader import CudfReader
from datapipe.columns.layout import MatrixLayout
from datapipe.core.observe import Observer, Stage
from datapipe.index.tables import TableIndex
from datapipe.loader.object_pool import ObjectPool
from datapipe.loader.policy import BadSampleLog
from datapipe.loader.tables.batches import RowBatch, named_batch, observe
from datapipe.loader.tables.options import TableOptions
from datapipe.order.plan import BatchSpan
from datapipe.order.row_order import Piece, RowRun


@dataclass(frozen=True, slots=True)
class DeviceWindow:
    """Memory for a window on a device."""

    tensors: list[torch.Tensor]  # (rows, width) of each matrix
    ready: Event  # the memory may be written
    filled: list[Event] = field(default_factory=list)  # one for each filled part


@dataclass(frozen=True)
class DeviceTableParts:
    """The parts that all passes of a loader share, with windows on a device. Thread-safe. See `TableParts`."""

    index: TableIndex
    layout: MatrixLayout
    options: TableOptions
    bad_samples: BadSampleLog
    observer: Observer
    workers: ObjectPool[CudfReader]
    runtime: DeviceRuntime
    stream: Stream  # of windows and batches
    packer: DevicePacker
    uploads: PinnedUploads
    pieces_at_once: int

    @property
    def enter_thread(self) -> Callable[[], None]:
        return self.runtime.enter_thread

    def lease_batch(self, span: BatchSpan, parts: list[tuple[int, LoadedWindow, RowRun]], ahead: list[LoadedWindow]) -> RowBatch:
        """Return memory for the rows of a span."""
        return RowBatch(span, parts, ahead, self._allocated(len(span)), [], np.ones(len(span), np.bool_))

    def blocks(self, batch: RowBatch) -> list[range]:
        """Return one block: a thread only queues work."""
        return [range(len(batch))] if len(batch) else []

    def lease_window(self, num_rows: int, room: int) -> DeviceWindow:
        """Return memory for a window: (num_rows, width) of each matrix. `room`: rows of the largest window."""
        tensors = [tensor[:num_rows] for tensor in self._allocated(max(num_rows, room))]
        return DeviceWindow(tensors, self.runtime.record_event(self.stream))

    def fill(self, reader: CudfReader, window: LoadedWindow, pieces: Sequence[Piece]) -> None:
        """Read pieces of a window into their places. Raises what the reader and the packer raise."""
        start_ns, runtime, memory = time.perf_counter_ns(), self.runtime, window.arrays
        pieces = sorted(pieces, key=lambda piece: piece.group)  # so that the groups of one file follow each other
        groups = [self.index.group(piece.group) for piece in pieces]
        columns = reader.read(groups)
        num_rows, kept = sum(piece.stop - piece.start for piece in pieces), list[object](columns.values())
        observe(self.observer, Stage.READ, window.step, start_ns, num_rows)
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
        observe(self.observer, Stage.DECODE, window.step, start_ns, num_rows)

    def replace(self, window: LoadedWindow, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Overwrite rows of a window with other rows of it."""
        self._join(window)
        with self.runtime.under(self.stream):
            targets, sources = self.uploads.to_device(rows), self.uploads.to_device(others)
            for tensor in window.arrays.tensors:
                tensor.index_copy_(0, targets, tensor.index_select(0, sources))

    def gather(self, batch: RowBatch, window: LoadedWindow, chosen: slice | NDArray[np.int64], first: int) -> None:
        """Copy some rows of a window to rows of a batch from `first` on."""
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
        """Return the arrival of a batch on the consumer's stream."""
        runtime = self.runtime
        start_ns = time.perf_counter_ns()
        runtime.pending.reap()
        with runtime.under(self.stream):
            matrices = batch.matrices
            if not batch.good.all():
                rows = self.uploads.to_device(np.flatnonzero(batch.good))
                matrices = [matrix.index_select(0, rows) for matrix in matrices]
            result = named_batch(self.layout, self.options, batch, matrices, to_tensor=self.uploads.to_device)
            if self.options.batch_transform is not None:
                result = self.options.batch_transform(result)
        event = runtime.record_event(self.stream)
        tensors = [tensor for tensor in tensors_of(result) if tensor.device == runtime.device]
        observe(self.observer, Stage.COPY, batch.span.step, start_ns, len(batch))
        return DeviceTransfer(result, tensors, event, runtime)

    def _join(self, window: LoadedWindow) -> None:
        """Order the gathering stream after what filled a window."""
        for event in window.arrays.filled:
            self.runtime.wait_event(self.stream, event)

    def _allocated(self, num_rows: int) -> list[torch.Tensor]:
        with self.runtime.under(self.stream):
            return [
                torch.empty((num_rows, matrix.width), dtype=getattr(torch, matrix.dtype), device=self.runtime.device)
                for matrix in self.layout.matrices
            ]
