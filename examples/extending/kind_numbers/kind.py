"""Numbers as a kind of data."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from datapipe.errors import DecodeError, IntegrityError
from datapipe.index.entries import Description
from datapipe.kernel.bad_samples import replacement
from datapipe.kernel.kind import BadRow, BatchMaker, Kind, Pass, PassFacts, Piece, Resources, SharedPieces
from datapipe.kernel.options import Shuffle
from datapipe.kernel.pools import ObjectPool
from datapipe.order.plan import BatchSpan, Tail
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder
from kind_numbers.inspection import NumbersIndex


class NumbersKind(Kind):
    """The numbers of an index."""

    def __init__(self, index: NumbersIndex) -> None:
        self.index = index
        self.num_samples = self.num_in_epoch = int(index.starts[-1])
        self.fingerprint = hashlib.sha256(repr(index.starts).encode()).hexdigest()

    def order(self, seed: int, *, shuffle: Shuffle, global_batch: int) -> Order:
        return ShuffledOrder(self.num_samples, seed) if shuffle else SequentialOrder(self.num_samples)

    def open_pass(self, settings: Pass) -> NumbersMaker:
        lines = Lines(self.index)
        return NumbersMaker(settings, self.index, lines, Resources(settings.options, ObjectPool(object), shared=lines))

    def explain(self, facts: PassFacts) -> list[str]:
        return [f"data      {self.num_samples} numbers", f"seed      {facts.seed}"]


@dataclass
class Lines(SharedPieces):
    """The lines of each file, read once."""

    index: NumbersIndex
    parts_at_once: int = 1
    num_read: int = 0

    def open(self, key: Any, step: int) -> tuple[list[str], list[int]]:
        return [], [key]

    def load(self, piece: list[str], parts: Sequence[int], worker: object) -> None:
        piece[:] = self.index.files[parts[0]].read_text().splitlines()
        self.num_read += 1

    def leave_out(self, piece: list[str], part: int, reason: DecodeError | IntegrityError) -> None:
        raise AssertionError("no file is bad as a whole")

    def complete(self, piece: list[str]) -> None: ...


@dataclass
class Batch:
    """One batch in the making."""

    span: BatchSpan
    ids: list[int]
    values: torch.Tensor
    good: torch.Tensor
    real: torch.Tensor  # False for a number that is a repeat


@dataclass
class NumbersMaker(BatchMaker):
    """Makes batches of numbers."""

    settings: Pass
    index: NumbersIndex
    lines: Lines
    resources: Resources

    def begin(self, step: BatchSpan) -> Batch:
        picks = self.settings.picks_of(step)
        ids, real = picks.positions.tolist(), torch.from_numpy(picks.real)
        return Batch(step, ids, torch.empty(len(ids), dtype=torch.int64), torch.ones(len(ids), dtype=torch.bool), real)

    def pieces(self, batch: Batch) -> list[Piece]:
        return [Piece(range(row, row + 1), self.index.place(sample)[:1]) for row, sample in enumerate(batch.ids)]

    def fill(self, batch: Batch, piece: Piece, shared: Sequence[list[str]], worker: object) -> list[BadRow]:
        (row,) = piece.rows
        line = shared[0][self.index.place(batch.ids[row])[1]]
        if not line.isdigit():
            return [BadRow(row, DecodeError(f"{line!r} is no number"))]
        batch.values[row] = int(line)
        return []

    def locate(self, batch: Batch, row: int) -> Description:
        file, line = self.index.place(batch.ids[row])
        return Description(batch.ids[row], str(self.index.files[file]), f"line {line}".encode(), "")

    def leave_out(self, batch: Batch, row: int) -> None:
        batch.good[row] = False

    def replace(self, batch: Batch, row: int, attempt: int, worker: object) -> bool:
        seed, epoch, num = self.settings.seed, batch.span.after.epoch, int(self.index.starts[-1])
        other = replacement(num, seed=seed, epoch=epoch, id=batch.ids[row], attempt=attempt)
        lines: list[str] = []
        self.lines.load(lines, [self.index.place(other)[0]], worker)
        changed = dataclasses.replace(batch, ids=[*batch.ids[:row], other, *batch.ids[row + 1 :]])
        return not self.fill(changed, Piece(range(row, row + 1)), [lines], worker)

    def finish(self, batch: Batch) -> Any:
        options, values = self.settings.options, batch.values[batch.good]
        made = (values, batch.real[batch.good]) if options.tail is Tail.MASK else values
        return made if options.batch_transform is None else options.batch_transform(made)
