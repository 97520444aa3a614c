"""Make batches: look samples up, load them block by block, decode, collate.

`SampleBatchMaker` holds what all batches of a loader share and never changes. With `images_cpu` a block leaves finished
rows; with DALI it leaves fetched bytes, and the batch goes through `decode` as a whole.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.core.errors import DecodeError
from datapipe.core.observe import Observer, Stage, StageEvent
from datapipe.fetch.files import Files
from datapipe.index.concat import AnyIndex, Repeats
from datapipe.index.entries import Entries, Extents
from datapipe.kernel.bad_samples import MAX_ATTEMPTS, BadSample, BadSampleLog, check_classes, located, replacement_id
from datapipe.kernel.device_runtime import DeviceRuntime
from datapipe.kernel.options import LoaderOptions
from datapipe.kernel.pools import BatchMemory
from datapipe.kernel.random_state import collation_seed, random_state_kept, reseed
from datapipe.kernel.tasks import LeftToConsumer, ObjectPool
from datapipe.kinds.images.collate import Batch, Collator
from datapipe.kinds.images.dali.pipeline import DaliPipeline
from datapipe.kinds.images.dali_stage import DaliStage, Fetched, FetchWorker
from datapipe.kinds.images.device_images import DeviceImages
from datapipe.kinds.images.fields import FurtherFields
from datapipe.kinds.images.images_cpu import MAX_CACHED, BadRow, BlockReport, BlockWorker
from datapipe.kinds.images.kept_images import KeptImages
from datapipe.order.draws import Draws, apart
from datapipe.order.plan import Picks
from datapipe.transforms import Recipe

Worker = BlockWorker | FetchWorker
LookedUp = tuple[Entries, dict[str, Extents]]  # labels and images; the further fields


@dataclass(frozen=True)
class SampleBatchMaker:
    """Makes the batches of a loader. Thread-safe."""

    index: AnyIndex
    has_image: bool
    looked_up: str  # the field with which labels are looked up: the image, if there is one
    further: FurtherFields
    recipe: Recipe  # the part that blocks carry out, or DALI and the CPU steps after it
    options: LoaderOptions
    seed: int
    files: Files
    observer: Observer
    bad_samples: BadSampleLog
    memory: BatchMemory | None  # None if images differ in size
    dali: DaliStage | None
    collator: Collator
    workers: ObjectPool[Worker]
    repeats: Repeats | None
    kept: KeptImages | None = None
    device_images: DeviceImages | None = None
    runtime: DeviceRuntime | None = None  # the GPU that batches go to

    def with_seed(self, seed: int) -> SampleBatchMaker:
        """Return the same maker, sharing all that it holds, with draws by another seed."""
        return dataclasses.replace(self, seed=seed)

    def prepare(self, picks: Picks) -> Batch:
        """Look up the samples, announce their bytes to the kernel, lease memory."""
        start_ns = time.perf_counter_ns()
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
            draws=Draws(self.seed, picks.after.epoch, apart(ids, occurrences)),
            labels=entries.labels.copy(),
            ids=ids.copy(),
            good=np.ones(len(ids), np.bool_),
            images=self._begin(len(ids)),
            values=[None] * len(ids),
            found=None if self.device_images is None else self.device_images.find(entries),
        )
        missing = self._missing(batch)
        if missing is not None:
            batch.announced.append(self.files.will_need(missing))
        for wanted in extents.values():
            batch.announced.append(self.files.will_need(wanted))
        self._observe_reads(Stage.PLAN, picks.step, start_ns, time.perf_counter_ns() - start_ns, len(batch))
        return batch

    def blocks(self, batch: Batch) -> list[range]:
        """Return the rows of each block."""
        return self.options.blocks(len(batch))

    def spare(self, batch: Batch) -> list[Callable[[Worker], object]]:
        """Return no spare work: the kernel was told of the bytes that are needed."""
        return []

    def load_block(self, batch: Batch, rows: range, worker: Worker) -> None:
        """Load some rows, and treat bad samples as the policy says. Raises what the policy raises."""
        start_ns = time.perf_counter_ns()
        draws = batch.draws[slice(rows.start, rows.stop)]
        report = self._load(batch, (batch.entries, batch.extents), rows, draws, rows.start, worker)
        self._observe_block(batch, rows, report, start_ns)
        for bad in report.bad:
            self._settle(batch, rows.start + bad.row, bad, worker)

    def decode(self, batch: Batch, pipeline: DaliPipeline, worker: FetchWorker) -> None:
        """Decode a fetched batch with DALI. Raises what the policy raises, and BackendError."""
        fetched, memory = batch.images, self.memory
        assert isinstance(fetched, Fetched)
        assert self.dali is not None
        assert memory is not None
        start_ns, num_samples = time.perf_counter_ns(), len(fetched.rows_given())
        uploader = self.collator.uploader
        pixels, batch.kept = self.dali.run(
            fetched,
            pipeline,
            worker,
            stream=uploader.stream if uploader else None,
            settle=lambda bad: self._settle(batch, bad.row, bad, worker),
        )
        if pixels is not None and pixels.device.type != "cpu":
            batch.by_hand = fetched.by_hand
        else:
            pixels = memory.lease(len(batch), torch.uint8) if pixels is None else pixels
            rows = pixels.numpy()
            for row, image in fetched.by_hand.items():
                rows[row] = image
        self._observe(Stage.DECODE, batch, start_ns, num_samples)
        if self.collator.finishes_pixels:
            batch.images = pixels
        else:
            start_ns = time.perf_counter_ns()
            batch.images = self._finished(pixels, batch)
            self._observe(Stage.AUGMENT, batch, start_ns)

    def finish(self, batch: Batch) -> Any:
        """Return what the user gets, or an `Arrival` of it on a device; `LeftToConsumer` if `collate_fn` may draw."""
        if self.options.may_draw is not None:
            return LeftToConsumer(functools.partial(self._finish_seeded, batch))
        return self._finish(batch)

    def _finish_seeded(self, batch: Batch) -> Any:
        """Finish in the random state of the batch, with torch's operators on one thread, as in decode threads; restore both."""
        num_intraop = torch.get_num_threads()
        picks = batch.picks
        try:
            torch.set_num_threads(1)
            with random_state_kept():
                reseed(collation_seed(self.seed, picks.after.epoch, picks.step, self.collator.rank))
                return self._finish(batch)
        finally:
            torch.set_num_threads(num_intraop)

    def _finish(self, batch: Batch) -> Any:
        start_ns = time.perf_counter_ns()
        check_classes(self.collator.recipe, batch.labels[batch.good], batch.ids[batch.good], self.index)
        result = self.collator.collate(batch)
        self._observe(Stage.COLLATE, batch, start_ns)
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

    def _begin(self, num_images: int) -> torch.Tensor | list[Any] | Fetched:
        if self.memory is None:
            return [None] * num_images
        if self.dali is not None and num_images:
            return Fetched(num_images, *self.memory.row_shape[:2])
        return self.memory.lease(num_images, self.recipe.output_dtype)

    def _look_up(self, ids: NDArray[np.int64]) -> LookedUp:
        return self.index.look_up(ids, self.looked_up), self.further.look_up(ids)

    def _load(self, batch: Batch, found: LookedUp, rows: range, draws: Draws, first: int, worker: Worker) -> BlockReport:
        """Load `rows` of what was looked up into the batch's rows from `first` on."""
        entries, extents = found
        report = self._load_images(batch, entries, rows, draws, first, worker) if self.has_image else BlockReport()
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

    def _settle(self, batch: Batch, row: int, bad: BadRow, worker: Worker) -> None:
        sample, reason = int(batch.picked[row]), bad.reason
        if self.options.on_error == "raise":
            raise located(reason, self.index, sample) from reason
        epoch, seed = batch.picks.after.epoch, self.seed
        where = str(self.index.describe(sample))
        tried = batch.num_attempts.get(row, 0)  # if a replacement turned out bad in DALI, take the next one
        if not tried:
            self.bad_samples.add(BadSample(epoch, batch.picks.step, sample, where, str(reason)))
        if isinstance(batch.images, Fetched):
            batch.images.forget(row)  # the image may have been loaded although another field is bad
        if self.options.on_error == "skip":
            batch.good[row] = False
            return
        for attempt in range(tried + 1, MAX_ATTEMPTS + 1):
            batch.num_attempts[row] = attempt
            other = np.array([replacement_id(self.index, seed=seed, epoch=epoch, id=sample, attempt=attempt)])
            found = self._look_up(other)
            if batch.found is not None:
                batch.found.replace(row, found[0])
            if not self._load(batch, found, range(1), Draws(seed, epoch, other), row, worker).bad:
                batch.ids[row], batch.labels[row] = other[0], found[0].labels[0]
                return
        raise DecodeError(
            f"{where}: {reason}; {MAX_ATTEMPTS} samples drawn to replace it are bad too: look at the data with `datapipe inspect`"
        )

    def _finished(self, block: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Run the pixel operations on the CPU, over as many images at a time as fit a core's cache."""
        assert self.memory is not None
        if not self.recipe.pixels and not self.options.pin_memory:
            return block
        out, draws = self.memory.lease(len(batch), self.recipe.output_dtype), batch.draws_of_ids()
        for start in range(0, len(batch), MAX_CACHED):
            rows = slice(start, min(start + MAX_CACHED, len(batch)))
            self.recipe.run_pixels(block[rows], draws[rows], out[rows])
        return out

    # -- observing ------------------------------------------------------------------------------

    def _observe(self, stage: Stage, batch: Batch, start_ns: int, num_samples: int | None = None) -> None:
        num = len(batch) if num_samples is None else num_samples
        self.observer(StageEvent(stage, batch.picks.step, start_ns, time.perf_counter_ns() - start_ns, num))

    def _observe_reads(self, stage: Stage, step: int, start_ns: int, duration_ns: int, num: int, nbytes: int = 0) -> None:
        """Report a stage, and apart from it the time in it that the thread waited for a network."""
        network_ns = min(self.files.take_network_ns(), duration_ns)
        if network_ns:
            self.observer(StageEvent(Stage.NETWORK, step, start_ns, network_ns, num))
        self.observer(StageEvent(stage, step, start_ns + network_ns, duration_ns - network_ns, num, nbytes))

    def _observe_block(self, batch: Batch, rows: range, report: BlockReport, start_ns: int) -> None:
        step, num = batch.picks.step, len(rows)
        self._observe_reads(Stage.READ, step, start_ns, report.read_ns, num, report.nbytes)
        start_ns += report.read_ns
        if isinstance(batch.images, Fetched):
            num -= batch.images.num_given(rows)
        self.observer(StageEvent(Stage.DECODE, step, start_ns, report.decode_ns, num))
        if not isinstance(batch.images, Fetched):
            start_ns += report.decode_ns
            self.observer(StageEvent(Stage.AUGMENT, step, start_ns, report.augment_ns, num))
