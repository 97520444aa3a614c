"""Make a batch of rows from its span of positions: look up windows or mapped rows, gather, deliver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.observe import Stage
from datapipe.kernel.kind import BatchMaker, Piece, Resources, note_stage
from datapipe.kinds.tables.arrow import RowGather
from datapipe.kinds.tables.parts import LoadedWindow, RowBatch, TableParts, TableSetup
from datapipe.order.plan import BatchSpan, Plan, Tail
from datapipe.order.row_order import RowRun, RunOrder, ShuffleWindow


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
