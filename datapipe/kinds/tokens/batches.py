"""Make batches of packs of tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.observe import Stage
from datapipe.index.entries import Description
from datapipe.kernel.bad_samples import good_rows, replacement
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.kind import BadRow, BatchMaker, Pass, Piece, Reason, Resources, note_stage
from datapipe.kinds.tokens.assembly import assembled
from datapipe.kinds.tokens.rows import FieldReader, Rows
from datapipe.kinds.tokens.settings import TokenSettings
from datapipe.order.draws import Ints
from datapipe.order.plan import BatchSpan, Picks, Tail
from datapipe.packing.losses import StepLosses


@dataclass(slots=True)
class TokenBatch:
    """One batch in the making."""

    picks: Picks
    rows: list[Rows]  # of each field
    pack_of_row: Ints | None  # which of the picks each row is of, where rows are documents; None: a pick is a row
    left_out: set[int] = field(default_factory=set)  # rows

    def __len__(self) -> int:
        return len(self.rows[0].ids)

    def of_rows(self, of_picks: NDArray[Any]) -> NDArray[Any]:
        """Return (rows,) what each row has of these values of picks."""
        return of_picks if self.pack_of_row is None else of_picks[self.pack_of_row]


@dataclass(slots=True)
class TokenMaker(BatchMaker):
    """Makes the batches of one pass. Thread-safe. See `BatchMaker`."""

    settings: TokenSettings
    readers: Sequence[FieldReader]  # of each field
    run: Pass
    delivery: Delivery
    resources: Resources
    losses: StepLosses
    drawn: int | None  # the seed by which packs are drawn; None if they are not shuffled

    def begin(self, step: BatchSpan) -> TokenBatch:
        start_ns = time.perf_counter_ns()
        picks = self.run.picks_of(step)
        begun = [reader.begin(picks.positions, seed=self.drawn, epoch=step.after.epoch) for reader in self.readers]
        batch = TokenBatch(picks, [rows for rows, _ in begun], begun[0][1])
        note_stage(self.run.observer, Stage.PLAN, step.step, start_ns, len(batch))
        return batch

    def pieces(self, batch: TokenBatch) -> list[Piece]:
        return [Piece(rows) for rows in self.run.options.blocks(len(batch))]

    def fill(self, batch: TokenBatch, piece: Piece, shared: Sequence[Any], worker: object) -> list[BadRow]:
        start_ns = time.perf_counter_ns()
        bad: dict[int, Reason] = {}
        nbytes = 0
        for reader, rows in zip(self.readers, batch.rows, strict=True):
            found, read = reader.read(rows.ids, rows.parts, piece.rows)
            bad = found | bad
            nbytes += read
        note_stage(self.run.observer, Stage.READ, batch.picks.step, start_ns, len(piece.rows), nbytes=nbytes)
        return [BadRow(row, reason) for row, reason in bad.items()]

    def locate(self, batch: TokenBatch, row: int) -> Description:
        index, segments = self.readers[0].index, batch.rows[0].parts.segments
        first = int(np.searchsorted(segments.row, row))
        document = int(index.starts[segments.shard[first]]) + int(segments.document[first])
        found = index.describe(document)
        number = document if self.settings.has_documents else int(batch.picks.positions[row])
        return Description(number, found.path, found.key, found.source)

    def leave_out(self, batch: TokenBatch, row: int) -> None:
        batch.left_out.add(row)

    def replace(self, batch: TokenBatch, row: int, attempt: int, worker: object) -> bool:
        epoch, pack = batch.picks.after.epoch, int(batch.of_rows(batch.picks.positions)[row])
        num_packs = len(self.readers[0].packs)
        other = replacement(num_packs, seed=self.run.seed, epoch=epoch, id=pack, attempt=attempt)
        replaced = [
            reader.replace(rows, row, other, attempt, seed=self.drawn, epoch=epoch)
            for reader, rows in zip(self.readers, batch.rows, strict=True)
        ]
        return all(replaced)

    def finish(self, batch: TokenBatch) -> Any:
        start_ns, step = time.perf_counter_ns(), batch.picks.step
        made = self._made(batch)
        note_stage(self.run.observer, Stage.COLLATE, step, start_ns, len(batch))
        return self.delivery.deliver(made, step=step, num_samples=len(batch))

    def _made(self, batch: TokenBatch) -> dict[str, Any]:
        """Return a batch as the user gets it, on the host."""
        picks, settings, rename = batch.picks, self.settings, self.run.options.rename
        good = good_rows(len(batch), batch.left_out)
        real = batch.of_rows(picks.real)[good]
        ignored = ~real if self.run.options.tail is Tail.MASK else None
        made: dict[str, Any] = {}
        for number, (reader, rows) in enumerate(zip(self.readers, batch.rows, strict=True)):
            names = settings.of_field(number)
            of_field = assembled(settings, {*names.values()}, reader.index, *rows.good(good), ignored)
            if "loss_tokens" in names.values():
                of_field["loss_tokens"] = self.losses.of_step(picks.step, epoch=picks.after.epoch)[number]
            made |= {name: of_field[own] for name, own in names.items()}
        if "id" in settings.fields:
            made["id"] = torch.from_numpy(self._numbers(batch)[good])
        named = {rename.get(name, name): made[name] for name in settings.fields}
        if self.run.options.tail is Tail.MASK:
            named[rename.get("real", "real")] = torch.from_numpy(real)
        return named

    def _numbers(self, batch: TokenBatch) -> Ints:
        """Return (rows,) the numbers of packs, or of documents in the corpus where rows are such."""
        if not self.settings.has_documents:
            return batch.picks.positions
        segments = batch.rows[0].parts.segments
        return self.readers[0].index.starts[segments.shard] + segments.document
