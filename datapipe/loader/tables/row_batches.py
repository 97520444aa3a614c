"""Make batches of rows that may be read in any order, straight from their span of positions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.backends.tables_arrow import RowGather
from datapipe.core.observe import Observer, Stage, StageEvent
from datapipe.loader.object_pool import ObjectPool
from datapipe.loader.tables.batches import RowBatch
from datapipe.loader.tables.host_parts import HostTableParts
from datapipe.loader.tables.options import TableOptions
from datapipe.order.plan import BatchSpan, Plan


@dataclass(frozen=True)
class RowMaker:
    """Makes the batches of one pass over row-major datasets. Thread-safe. See `batch_making.BatchMaker`."""

    parts: HostTableParts
    plan: Plan
    rows: RowGather
    dali: None = None

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
        """Return a batch with memory for its rows."""
        return self.parts.lease_batch(span, [], [])

    def blocks(self, batch: RowBatch) -> list[range]:
        """Return the rows of each block."""
        return self.parts.blocks(batch)

    def spare(self, batch: RowBatch) -> list[Callable[[Any], object]]:
        """Return nothing: rows are not read ahead."""
        return []

    def load_block(self, batch: RowBatch, rows: range, worker: object) -> None:
        """Gather some rows."""
        start_ns = time.perf_counter_ns()
        span = batch.span
        positions = np.arange(span.start + rows.start, span.start + rows.stop, dtype=np.int64) % span.num_samples
        self.rows.gather(self.plan.order(span.after.epoch, positions), batch.arrays, rows.start)
        self.observer(StageEvent(Stage.COLLATE, span.step, start_ns, time.perf_counter_ns() - start_ns, len(rows)))

    def decode(self, batch: RowBatch, pipeline: object, worker: object) -> None:
        raise AssertionError("tables have no stage that decodes whole batches")

    def finish(self, batch: RowBatch) -> Any:
        """Return the matrices as the user gets them, or their arrival on a device."""
        return self.parts.hand_over(batch)
