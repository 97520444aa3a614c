"""A batch from picks to what the user gets: looked up, loaded block by block, put together.

`BatchMaker` holds what all batches of a loader share and never changes; `Batch` is one batch in the
making. Several threads may load blocks of one batch at once: each writes rows of its own.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.backends.images_cpu import BadRow, BlockReport, BlockWorker
from datapipe.backends.slabs import SlabPool
from datapipe.draws import Draws
from datapipe.errors import DecodeError
from datapipe.fetch.local import LocalFiles
from datapipe.index import Entries, SampleIndex
from datapipe.loader.options import LoaderOptions
from datapipe.loader.policy import MAX_ATTEMPTS, BadSample, BadSampleLog, located, replacement_id
from datapipe.observe import Observer, Stage, StageEvent
from datapipe.plan import Picks, Rank
from datapipe.transforms import Recipe


@dataclass(slots=True)
class Batch:
    """One batch in the making."""

    picks: Picks
    entries: Entries
    draws: Draws
    labels: NDArray[np.int64]  # (b,)
    ids: NDArray[np.int64]  # (b,)
    images: torch.Tensor | list[torch.Tensor | None]  # (b, h, w, 3), or one (h, w, 3) tensor a sample where sizes differ
    good: NDArray[np.bool_]  # (b,) False for rows to be left out

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class BatchMaker:
    """Makes batches. Thread-safe."""

    index: SampleIndex
    recipe: Recipe
    options: LoaderOptions
    rank: Rank
    files: LocalFiles
    observer: Observer
    bad_samples: BadSampleLog
    size: tuple[int, int] | None  # (height, width) of every image; None where they differ
    labelled: bool
    memory_format: torch.memory_format
    _pools: list[SlabPool] = field(default_factory=list)  # one, once the first batch is made
    _workers: list[BlockWorker] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def borrow_worker(self) -> BlockWorker:
        """A worker for the calling thread; give it back when the thread ends."""
        with self._lock:
            if self._workers:
                return self._workers.pop()
        return BlockWorker(self.recipe, self.files)

    def return_worker(self, worker: BlockWorker) -> None:
        with self._lock:
            self._workers.append(worker)

    def prepare(self, picks: Picks) -> Batch:
        """Look up the samples, ask the kernel for their bytes, lease memory."""
        start_ns = time.perf_counter_ns()
        ids = self.index.ids(picks.positions)
        entries = self.index.look_up(ids, "image")
        self.files.will_need(entries.extents)
        batch = Batch(
            picks=picks,
            entries=entries,
            draws=Draws(self.options.seed, picks.after.epoch, ids),
            labels=entries.labels.copy(),
            ids=ids.copy(),
            images=self._lease(len(ids)) if self.size else [None] * len(ids),
            good=np.ones(len(ids), np.bool_),
        )
        self._observe(Stage.PLAN, picks, start_ns, time.perf_counter_ns() - start_ns, len(ids))
        return batch

    def blocks(self, batch: Batch) -> list[range]:
        """The rows of each block."""
        size = self.options.block_size_of(len(batch))
        return [range(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]

    def load_block(self, batch: Batch, rows: range, worker: BlockWorker) -> None:
        """Load some rows, and do with bad samples as the policy says. Raises what the policy raises."""
        start_ns = time.perf_counter_ns()
        report = self._load(batch, batch.entries, rows, batch.draws[slice(rows.start, rows.stop)], rows.start, worker)
        self._observe_block(batch, rows, report, start_ns)
        for bad in report.bad:
            self._settle(batch, rows.start + bad.row, bad, worker)

    def finish(self, batch: Batch) -> Any:
        """What the user gets."""
        start_ns = time.perf_counter_ns()
        result = self._collate(batch)
        self._observe(Stage.COLLATE, batch.picks, start_ns, time.perf_counter_ns() - start_ns, len(batch))
        return result

    # -- loading --------------------------------------------------------------------------------

    def _load(self, batch: Batch, entries: Entries, rows: range, draws: Draws, first: int, worker: BlockWorker) -> BlockReport:
        """Load `rows` of `entries` into the batch's rows from `first` on."""
        if isinstance(batch.images, torch.Tensor):
            return worker.load(entries, rows, draws, batch.images[first : first + len(rows)])
        images, report = worker.load_each(entries, rows, draws)
        batch.images[first : first + len(rows)] = images
        return report

    def _settle(self, batch: Batch, row: int, bad: BadRow, worker: BlockWorker) -> None:
        sample, reason = int(batch.ids[row]), bad.reason
        if self.options.on_error == "raise":
            raise located(reason, self.index, sample) from reason
        epoch, seed = batch.picks.after.epoch, self.options.seed
        where = str(self.index.describe(sample))
        self.bad_samples.add(BadSample(epoch, batch.picks.step, sample, where, str(reason)))
        if self.options.on_error == "skip":
            batch.good[row] = False
            return
        for attempt in range(1, MAX_ATTEMPTS + 1):
            other = np.array([replacement_id(self.index, seed=seed, epoch=epoch, id=sample, attempt=attempt)])
            entries = self.index.look_up(other, "image")
            if not self._load(batch, entries, range(1), Draws(seed, epoch, other), row, worker).bad:
                batch.ids[row], batch.labels[row] = other[0], entries.labels[0]
                return
        raise DecodeError(
            f"{where}: {reason}; {MAX_ATTEMPTS} samples drawn to replace it are bad too: look at the data with `datapipe inspect`"
        )

    # -- putting together -----------------------------------------------------------------------

    def _lease(self, num_images: int) -> torch.Tensor:
        """(num_images, h, w, 3), uninitialised."""
        assert self.size is not None
        height, width = self.size
        dtype = self.recipe.output_dtype
        image_nbytes = 3 * height * width * dtype.itemsize
        nbytes = max(num_images, self.options.batch_size) * image_nbytes
        with self._lock:
            if not self._pools or self._pools[0].nbytes < nbytes:  # a batch sampler gave a larger batch than all before
                pinned = self.options.pin_memory and torch.cuda.is_available()
                self._pools[:] = [SlabPool(nbytes, max_free=self.options.depth + 2, pinned=pinned)]
            pool = self._pools[0]
        return torch.from_numpy(pool.lease()[: num_images * image_nbytes]).view(dtype).view(num_images, height, width, 3)

    def _collate(self, batch: Batch) -> Any:
        fields = self._fields(batch)
        if self.options.collate_fn is not None:
            result = self.options.collate_fn(self._samples(fields))
        else:
            if isinstance(fields["image"], list):
                images = fields["image"]  # none are left where every sample was bad
                fields["image"] = torch.stack(images) if images else torch.empty((0, 3, 0, 0), dtype=self.recipe.output_dtype)
            if self.memory_format is not torch.channels_last:
                fields["image"] = fields["image"].contiguous(memory_format=self.memory_format)
            fields = self._mix(batch, fields)
            result = self._output(fields)
        return result if self.options.batch_transform is None else self.options.batch_transform(result)

    def _fields(self, batch: Batch) -> dict[str, Any]:
        """The batch's fields by name, rows of bad samples left out."""
        good = batch.good
        images: Any = batch.images
        if isinstance(images, list):
            images = [image.permute(2, 0, 1) for image, is_good in zip(images, good, strict=True) if is_good]
        else:
            images = (images if good.all() else images[torch.from_numpy(good)]).permute(0, 3, 1, 2)
        fields: dict[str, Any] = {"image": images}
        if self.labelled:
            fields["label"] = torch.from_numpy(batch.labels[good])
        if self.options.tail.value == "mask":
            fields["mask"] = torch.from_numpy(batch.picks.real[good])
        if self.options.output == "dict":
            fields["id"] = torch.from_numpy(batch.ids[good])
        return fields

    def _mix(self, batch: Batch, fields: dict[str, Any]) -> dict[str, Any]:
        """MixUp and CutMix: drawn once per batch, keyed by (seed, epoch, step, rank)."""
        if self.recipe.batch:
            key = np.array([batch.picks.step * self.rank.world_size + self.rank.rank], np.int64)
            draws = Draws(self.options.seed, batch.picks.after.epoch, key)
            fields["image"], fields["label"] = self.recipe.run_batch(fields["image"], fields["label"], draws)
        return fields

    def _output(self, fields: dict[str, Any]) -> Any:
        if self.options.output == "dict":
            return {self.options.rename.get(name, name): value for name, value in fields.items()}
        return tuple(fields.values())

    def _samples(self, fields: dict[str, Any]) -> list[Any]:
        """The batch taken apart, as torch hands samples to a collate_fn: labels are ints."""
        columns = {name: value.tolist() if name != "image" else list(value) for name, value in fields.items()}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return [self._output(row) for row in rows]

    # -- observing ------------------------------------------------------------------------------

    def _observe(self, stage: Stage, picks: Picks, start_ns: int, duration_ns: int, num_samples: int) -> None:
        self.observer(StageEvent(stage, picks.step, start_ns, duration_ns, num_samples))

    def _observe_block(self, batch: Batch, rows: range, report: BlockReport, start_ns: int) -> None:
        step, num = batch.picks.step, len(rows)
        self.observer(StageEvent(Stage.READ, step, start_ns, report.read_ns, num, report.nbytes))
        start_ns += report.read_ns
        self.observer(StageEvent(Stage.DECODE, step, start_ns, report.decode_ns, num))
        start_ns += report.decode_ns
        self.observer(StageEvent(Stage.AUGMENT, step, start_ns, report.augment_ns, num))
