"""Make batches: look samples up, load them block by block, decode, collate.

`SampleBatchMaker` holds what all batches of a pass share and never changes. With `images_cpu` a block leaves finished
rows; with DALI it leaves fetched bytes, and the batch goes through `decode` as a whole.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.field_values import NO_LABEL, NULL_LABEL
from datapipe.core.observe import Stage
from datapipe.errors import DecodeError, OptionError
from datapipe.fetch.files import Files
from datapipe.index.concat import AnyIndex, Repeats
from datapipe.index.entries import Description, Entries, Extents, why_bad
from datapipe.kernel.bad_samples import replacement
from datapipe.kernel.kind import BadRow, BatchMaker, LeftToConsumer, Pass, Piece, Resources, note_stage
from datapipe.kernel.pools import BatchMemory
from datapipe.kernel.random_state import collation_seed, random_state_kept, reseed
from datapipe.kinds.images.buckets import BucketPlan
from datapipe.kinds.images.collate import Batch, Collator
from datapipe.kinds.images.dali.pipeline import DaliPipeline
from datapipe.kinds.images.dali_stage import DaliStage, Fetched, FetchWorker
from datapipe.kinds.images.device_images import DeviceImages
from datapipe.kinds.images.fields import FurtherFields
from datapipe.kinds.images.images_cpu import MAX_CACHED, BlockReport, BlockWorker
from datapipe.kinds.images.kept_images import KeptImages
from datapipe.order.draws import Draws, apart
from datapipe.order.plan import BatchSpan, Picks
from datapipe.transforms import CutMix, MixUp, Recipe

Worker = BlockWorker | FetchWorker
LookedUp = tuple[Entries, dict[str, Extents]]  # labels and images; the further fields


@dataclass(frozen=True)
class SampleBatchMaker(BatchMaker):
    """Makes the batches of a pass. Thread-safe."""

    settings: Pass
    resources: Resources
    index: AnyIndex
    has_image: bool
    looked_up: str  # the field with which labels are looked up: the image, if there is one
    has_label: bool
    further: FurtherFields
    recipe: Recipe  # the part that blocks carry out, or DALI and the CPU steps after it
    files: Files
    memory: BatchMemory | None  # None if images differ in size
    dali: DaliStage | None
    collator: Collator
    repeats: Repeats | None
    kept: KeptImages | None = None
    device_images: DeviceImages | None = None
    plan: BucketPlan | None = None  # of buckets: memory is then of flat rows that hold the largest shape

    def with_settings(self, settings: Pass) -> SampleBatchMaker:
        """Return a maker for another pass, sharing all that this one holds."""
        return dataclasses.replace(self, settings=settings)

    def begin(self, step: BatchSpan | Picks) -> Batch:
        """Look up the samples, announce their bytes to the operating system, lease memory."""
        start_ns = time.perf_counter_ns()
        picks = self.settings.picks_of(step)
        self.files.reach(picks.after.epoch, picks.step)
        self.files.take_network_ns()  # what the thread waited for before is no part of this
        ids = self.index.ids(picks.positions)
        entries, extents = self._look_up(ids)
        occurrences = picks.occurrences
        if self.repeats is not None:
            occurrences = self.repeats.occurrences(picks.positions, occurrences)
        batch = Batch(
            picks=picks,
            entries=entries,
            extents=extents,
            picked=ids,
            draws=Draws(self.settings.seed, picks.after.epoch, apart(ids, occurrences)),
            labels=entries.labels.copy(),
            ids=ids.copy(),
            good=np.ones(len(ids), np.bool_),
            images=self._begin(picks.positions),
            values=[None] * len(ids),
            found=None if self.device_images is None else self.device_images.find(entries),
        )
        missing = self._missing(batch)
        if missing is not None:
            batch.announced.append(self.files.will_need(missing))
        for wanted in extents.values():
            batch.announced.append(self.files.will_need(wanted))
        network_ns = self.files.take_network_ns()
        note_stage(self.settings.observer, Stage.PLAN, picks.step, start_ns, len(batch), network_ns=network_ns)
        return batch

    def pieces(self, batch: Batch) -> list[Piece]:
        return [Piece(rows) for rows in self.resources.options.blocks(len(batch))]

    def fill(self, batch: Batch, piece: Piece, shared: object, worker: Worker) -> Sequence[BadRow]:
        """Load a block."""
        start_ns, rows = time.perf_counter_ns(), piece.rows
        draws = batch.draws[slice(rows.start, rows.stop)]
        report = self._load(batch, (batch.entries, batch.extents), rows, draws, rows.start, worker)
        self._observe_block(batch, rows, report, start_ns)
        return [BadRow(rows.start + bad.row, bad.reason) for bad in report.bad]

    def locate(self, batch: Batch, row: int) -> Description:
        return self.index.describe(int(batch.picked[row]))

    def leave_out(self, batch: Batch, row: int) -> None:
        if isinstance(batch.images, Fetched):
            batch.images.forget(row)  # the image may have been loaded although another field is bad
        batch.good[row] = False

    def replace(self, batch: Batch, row: int, attempt: int, worker: Worker) -> bool:
        if isinstance(batch.images, Fetched):
            batch.images.forget(row)
        epoch, seed, sample = batch.picks.after.epoch, self.settings.seed, int(batch.picked[row])
        position = replacement(len(self.index), seed=seed, epoch=epoch, id=sample, attempt=attempt)
        if self.plan is not None:
            position = self.plan.replacement(int(batch.picks.positions[row]), position)
        other = self.index.ids(np.array([position], np.int64))
        found = self._look_up(other)
        if batch.found is not None:
            batch.found.replace(row, found[0])
        if self._load(batch, found, range(1), Draws(seed, epoch, other), row, worker).bad:
            return False
        batch.ids[row], batch.labels[row] = other[0], found[0].labels[0]
        return True

    def decode(self, batch: Batch, lane: DaliPipeline, worker: FetchWorker, settle: Callable[[BadRow], None]) -> None:
        """Decode a fetched batch with DALI. Raises what `settle` raises, and BackendError."""
        fetched, memory = batch.images, self.memory
        assert isinstance(fetched, Fetched)
        assert self.dali is not None
        assert memory is not None
        start_ns, num_samples = time.perf_counter_ns(), len(fetched.rows_given())
        uploader = self.collator.delivery.uploader
        pixels, batch.kept = self.dali.run(
            fetched,
            lane,
            worker,
            stream=uploader.stream if uploader else None,
            settle=settle,
        )
        if pixels is not None and pixels.device.type != "cpu":
            batch.by_hand = fetched.by_hand
        else:
            pixels = memory.lease(len(batch), torch.uint8) if pixels is None else pixels
            rows = pixels.numpy()
            for row, image in fetched.by_hand.items():
                rows[row] = image
        note_stage(self.settings.observer, Stage.DECODE, batch.picks.step, start_ns, num_samples)
        if self.collator.finishes_pixels:
            batch.images = pixels
        else:
            start_ns = time.perf_counter_ns()
            batch.images = self._finished(pixels, batch)
            note_stage(self.settings.observer, Stage.AUGMENT, batch.picks.step, start_ns, len(batch))

    def finish(self, batch: Batch) -> Any:
        """Return what the user gets, or an `Arrival` of it on a device; `LeftToConsumer` if `collate_fn` may draw."""
        if self.resources.options.may_draw is not None:
            return LeftToConsumer(functools.partial(self._finish_seeded, batch))
        return self._finish(batch)

    def _finish_seeded(self, batch: Batch) -> Any:
        """Finish in the random state of the batch, with torch's operators on one thread, as in decode threads; restore both."""
        num_intraop = torch.get_num_threads()
        picks = batch.picks
        try:
            torch.set_num_threads(1)
            with random_state_kept():
                reseed(collation_seed(self.settings.seed, picks.after.epoch, picks.step, self.collator.rank))
                return self._finish(batch)
        finally:
            torch.set_num_threads(num_intraop)

    def _finish(self, batch: Batch) -> Any:
        start_ns = time.perf_counter_ns()
        _check_classes(self.collator.recipe, batch.labels[batch.good], batch.ids[batch.good], self.index)
        result = self.collator.collate(batch)
        note_stage(self.settings.observer, Stage.COLLATE, batch.picks.step, start_ns, len(batch))
        return result

    # -- loading --------------------------------------------------------------------------------

    def _missing(self, batch: Batch) -> Extents | None:
        """Return where the images lie that no cache has; None if there are none."""
        if not self.has_image:
            return None
        if batch.found is not None:
            rows = batch.found.missing()
            return batch.entries.extents.take(rows) if rows else None
        return batch.entries.extents if self.kept is None else self.kept.will_need(batch.entries)

    def _begin(self, positions: NDArray[np.int64]) -> torch.Tensor | list[Any] | Fetched:
        num_images = len(positions)
        if self.memory is None:
            return [None] * num_images
        if self.plan is not None and num_images:
            height, width = self.plan.shape_of(positions)
            num_rows = -(-num_images * height * width * 3 // self.memory.row_shape[0])
            flat = self.memory.lease(num_rows, self.recipe.output_dtype).view(-1)
            return flat[: num_images * height * width * 3].view(num_images, height, width, 3)
        if self.dali is not None and num_images:
            return Fetched(num_images, *self.memory.row_shape[:2])
        return self.memory.lease(num_images, self.recipe.output_dtype)

    def _look_up(self, ids: NDArray[np.int64]) -> LookedUp:
        return self.index.look_up(ids, self.looked_up), self.further.look_up(ids)

    def _load(self, batch: Batch, found: LookedUp, rows: range, draws: Draws, first: int, worker: Worker) -> BlockReport:
        """Load `rows` of what was looked up into the batch's rows from `first` on."""
        entries, extents = found
        report = self._load_images(batch, entries, rows, draws, first, worker) if self.has_image else BlockReport()
        codecs = entries.extents.codecs
        if not self.has_image and not extents and codecs is not None:  # labels alone: the index may say that a sample is bad
            reasons = ((place, why_bad(codecs[row])) for place, row in enumerate(rows))
            report.bad += [BadRow(place, DecodeError(reason)) for place, reason in reasons if reason is not None]
        if self.has_label:
            unlabelled = {*np.flatnonzero(entries.labels[rows.start : rows.stop] == NO_LABEL).tolist()}
            report.bad += [BadRow(row, DecodeError(NULL_LABEL)) for row in sorted(unlabelled - {bad.row for bad in report.bad})]
        if extents:
            batch.values[first : first + len(rows)] = self.further.load(extents, rows, draws, report)
        return report

    def _load_images(self, batch: Batch, entries: Entries, rows: range, draws: Draws, first: int, worker: Worker) -> BlockReport:
        found = batch.found
        if found is None:
            return self._load_missing(batch, entries, rows, draws, first, worker)
        kept = found.kept(range(first, first + len(rows)))
        is_complete = len(kept) == len(rows)
        report = BlockReport() if is_complete else self._load_missing(batch, entries, rows, draws, first, worker, kept)
        for row, size in report.sizes.items():
            found.sizes[first + row] = size
        report.sizes |= {row: tuple(found.sizes[first + row].tolist()) for row in kept}
        return report

    def _load_missing(
        self,
        batch: Batch,
        entries: Entries,
        rows: range,
        draws: Draws,
        first: int,
        worker: Worker,
        leave_out: Collection[int] = (),
    ) -> BlockReport:
        if isinstance(worker, FetchWorker):
            assert isinstance(batch.images, Fetched)
            return worker.load(entries, rows, draws, batch.images, first, leave_out=leave_out)
        if isinstance(batch.images, torch.Tensor):
            return worker.load(entries, rows, draws, batch.images[first : first + len(rows)], leave_out=leave_out)
        assert isinstance(batch.images, list)
        images, report = worker.load_each(entries, rows, draws)
        batch.images[first : first + len(rows)] = images
        return report

    def _finished(self, block: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Run the pixel operations on the CPU, over as many images at a time as fit a core's cache."""
        assert self.memory is not None
        if not self.recipe.pixels and not self.resources.options.pin_memory:
            return block
        out, draws = self.memory.lease(len(batch), self.recipe.output_dtype), batch.draws_of_ids()
        for start in range(0, len(batch), MAX_CACHED):
            rows = slice(start, min(start + MAX_CACHED, len(batch)))
            self.recipe.run_pixels(block[rows], draws[rows], out[rows])
        return out

    def _observe_block(self, batch: Batch, rows: range, report: BlockReport, start_ns: int) -> None:
        observer, step, num = self.settings.observer, batch.picks.step, len(rows)
        network_ns, nbytes = self.files.take_network_ns(), report.nbytes
        note_stage(observer, Stage.READ, step, start_ns, num, took_ns=report.read_ns, network_ns=network_ns, nbytes=nbytes)
        start_ns += report.read_ns
        if isinstance(batch.images, Fetched):
            num -= batch.images.num_given(rows)
        note_stage(observer, Stage.DECODE, step, start_ns, num, took_ns=report.decode_ns)
        if not isinstance(batch.images, Fetched):
            note_stage(observer, Stage.AUGMENT, step, start_ns + report.decode_ns, num, took_ns=report.augment_ns)


def _check_classes(recipe: Recipe, labels: NDArray[np.int64], ids: NDArray[np.int64], index: AnyIndex) -> None:
    """Raise OptionError, naming a sample, if MixUp or CutMix would be given a label outside of the classes.

    On a GPU such a label would fail an assertion and end the process. `labels` and `ids`: (b,) of a batch.
    """
    for _, op in recipe.batch:
        if isinstance(op, (MixUp, CutMix)) and op.num_classes is not None:
            outside = np.flatnonzero((labels < 0) | (labels >= op.num_classes))
            if len(outside):
                row = outside[0]
                raise OptionError(
                    f"{index.describe(int(ids[row]))}: its label is {labels[row]}, and {op!r} takes 0 to {op.num_classes - 1}; "
                    "pass the dataset's number of classes"
                )
