"""Make batches of sound."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.field_values import NO_LABEL, NULL_LABEL
from datapipe.core.observe import Stage
from datapipe.errors import DecodeError
from datapipe.fetch.files import Files
from datapipe.fetch.remote import RemoteFiles
from datapipe.index.entries import Description
from datapipe.kernel.bad_samples import good_rows, replacement
from datapipe.kernel.delivery import Delivery
from datapipe.kernel.kind import BadRow, BatchMaker, Pass, Piece, Reason, Resources, Step, note_stage
from datapipe.kernel.pools import BatchMemory
from datapipe.kinds.audio.reading import SoundReader
from datapipe.kinds.audio.samples import AudioSamples
from datapipe.order.draws import Draws, Ints, apart
from datapipe.order.plan import Picks, Tail

_CROP = 0x63726F70  # the operation that draws where a crop begins
_NEIGHBOURS = 64  # among which the utterance that replaces a bad one is chosen, by length


@dataclass(slots=True)
class AudioBatch:
    """One batch in the making. Several threads may fill it at once: each writes rows of its own."""

    picks: Picks
    picked: Ints  # (b,) the utterances in its rows
    utterances: Ints  # (b,) the same, replacements included
    pick_of_row: Ints  # (b,) which of the picks each is of: a row is a pick, or one of several of a batch of `max_seconds`
    draws: NDArray[np.float64]  # (b,) from 0 to 1: where crops lie
    audio: torch.Tensor  # (b, c, t)
    lengths: Ints  # (b,) samples before padding
    left_out: set[int] = field(default_factory=set)  # rows
    on_their_way: object = None  # bytes that were asked for ahead of use

    def __len__(self) -> int:
        return len(self.picked)


@dataclass(slots=True)
class AudioMaker(BatchMaker):
    """Makes the batches of one pass. Thread-safe. See `BatchMaker`."""

    samples: AudioSamples
    run: Pass
    files: Files
    memory: BatchMemory  # of samples
    delivery: Delivery
    resources: Resources

    def begin(self, step: Step) -> AudioBatch:
        start_ns = time.perf_counter_ns()
        samples, picks = self.samples, self.run.picks_of(step)
        epoch, picked, of_row = picks.after.epoch, picks.positions, np.arange(len(picks))
        if samples.batches is not None:
            seed = self.run.seed if self.run.options.shuffle else None
            picked, of_row = samples.batches.samples_of(picks.positions, seed=seed, epoch=epoch)
        draws = np.full(len(picked), {"center": 0.5}.get(samples.settings.crop, 0.0))
        if samples.crop is not None and samples.settings.crop == "random":
            draws = Draws(self.run.seed, epoch, apart(picked, picks.occurrences)).uniform(_CROP, 1)[:, 0]
        length = samples.crop or max(1, int(samples.lengths[picked].max(initial=1)))
        channels = samples.settings.channels
        audio = self.memory.lease(len(picked) * channels * length, torch.float32).view(len(picked), channels, length)
        batch = AudioBatch(picks, picked, picked.copy(), of_row, draws, audio, np.zeros(len(picked), np.int64))
        if isinstance(self.files, RemoteFiles):  # a disk is read ahead by the kernel
            self.files.reach(epoch, picks.step)
            found = samples.utterances
            batch.on_their_way = self.files.will_need(found.recordings.extents(np.unique(found.recording[picked]).tolist()))
        note_stage(self.run.observer, Stage.PLAN, picks.step, start_ns, len(batch))
        return batch

    def pieces(self, batch: AudioBatch) -> list[Piece]:
        return [Piece(rows) for rows in self.run.options.blocks(len(batch))]

    def fill(self, batch: AudioBatch, piece: Piece, shared: Sequence[Any], worker: object) -> list[BadRow]:
        assert isinstance(worker, SoundReader)
        start_ns = time.perf_counter_ns()
        self.files.take_network_ns()  # what the thread waited for before is no part of this
        found = self._read(batch, piece.rows, batch.picked[piece.rows.start : piece.rows.stop], worker)
        bad = [BadRow(row, reason) for row, reason in sorted(found.items())]
        network_ns, step = self.files.take_network_ns(), batch.picks.step
        note_stage(self.run.observer, Stage.DECODE, step, start_ns, len(piece.rows), network_ns=network_ns)
        return bad

    def locate(self, batch: AudioBatch, row: int) -> Description:
        return self.samples.utterances.describe(int(batch.picked[row]))

    def leave_out(self, batch: AudioBatch, row: int) -> None:
        batch.left_out.add(row)

    def replace(self, batch: AudioBatch, row: int, attempt: int, worker: object) -> bool:
        number = int(batch.picked[row])
        among = self._like(number)
        chosen = replacement(len(among), seed=self.run.seed, epoch=batch.picks.after.epoch, id=number, attempt=attempt)
        other = int(among[chosen])
        if self.samples.crop is None and self.samples.lengths[other] > batch.audio.shape[2]:
            return False
        assert isinstance(worker, SoundReader)
        if self._read(batch, range(row, row + 1), np.array([other]), worker):
            return False
        batch.utterances[row] = other
        return True

    def finish(self, batch: AudioBatch) -> Any:
        start_ns, step = time.perf_counter_ns(), batch.picks.step
        batch.on_their_way = None
        made = self._made(batch)
        note_stage(self.run.observer, Stage.COLLATE, step, start_ns, len(batch))
        return self.delivery.deliver(made, keep=batch.audio, step=step, num_samples=len(batch))

    def _read(self, batch: AudioBatch, rows: range, numbers: Ints, reader: SoundReader) -> dict[int, Reason]:
        """Read utterances, or the crops of them that were drawn, into rows; return why rows are bad."""
        labels = self.samples.utterances.labels
        if labels is not None and "label" in self.samples.fields and (labels[numbers] == NO_LABEL).any():
            if len(rows) == 1:
                return {rows[0]: DecodeError(NULL_LABEL)}
            each = [self._read(batch, rows[one : one + 1], numbers[one : one + 1], reader) for one in range(len(rows))]
            return {row: reason for found in each for row, reason in found.items()}
        lengths = self.samples.lengths[numbers]
        num = np.minimum(lengths, batch.audio.shape[2])
        first = (batch.draws[rows.start : rows.stop] * (lengths - num + 1)).astype(np.int64)
        batch.lengths[rows.start : rows.stop] = num
        stretches = [self.samples.stretch(*one) for one in zip(numbers.tolist(), first.tolist(), num.tolist(), strict=True)]
        found = reader.read(batch.audio[rows.start : rows.stop], stretches)
        return {rows[place]: reason for place, reason in found.items()}

    def _like(self, number: int) -> Sequence[int] | Ints:
        """Return those of which one replaces an utterance: all for a crop; otherwise some that are as long, or a bit shorter."""
        samples = self.samples
        if samples.crop is not None:
            return range(len(samples))
        order = samples.by_length
        end = int(np.searchsorted(samples.lengths, samples.lengths[number], side="right", sorter=order))
        found = order[max(0, end - _NEIGHBOURS) : end]
        return found if len(found) > 1 else order[:_NEIGHBOURS]

    def _made(self, batch: AudioBatch) -> dict[str, Any]:
        """Return a batch as the user gets it, on the host."""
        good, found, rename = good_rows(len(batch), batch.left_out), self.samples.utterances, self.run.options.rename
        numbers, rows = batch.utterances[good], good if isinstance(good, slice) else torch.from_numpy(good)
        audio = batch.audio if batch.audio.shape[1] > 1 else batch.audio[:, 0]
        values: dict[str, Any] = {"audio": audio[rows], "lengths": batch.lengths[good], "id": numbers}
        fields = self.samples.fields
        if "label" in fields and found.labels is not None:
            values["label"] = found.labels[numbers]
        if "text" in fields:
            values["text"] = found.texts_of(numbers.tolist())
        if self.run.options.tail is Tail.MASK:
            values["real"] = batch.picks.real[batch.pick_of_row][good]
        names = [*fields, "real"] if "real" in values else fields
        return {
            rename.get(name, name): torch.from_numpy(values[name]) if isinstance(values[name], np.ndarray) else values[name]
            for name in names
        }
