"""Decode images with DALI: threads fetch and parse blocks, then the whole batch goes through a pipeline.

Rows that DALI must not see, or would not decode as Pillow does, are made by `images_cpu` while the block is fetched.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.probe import MAX_PIXELS
from datapipe.core.printable import get_logger
from datapipe.errors import BackendError
from datapipe.index.entries import Entries
from datapipe.kernel.device_runtime import Stream
from datapipe.kernel.kind import BadRow, Lanes
from datapipe.kernel.pools import ObjectPool
from datapipe.kinds.images.dali.gate import PLACEHOLDER_SIDE, can_decode, placeholder
from datapipe.kinds.images.dali.pipeline import DaliPipeline, RunError
from datapipe.kinds.images.dali.settings import GraphOptions
from datapipe.kinds.images.images_cpu import BlockReport, BlockWorker, EncodedSample, draws_of, sizes_of
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.protocols import Cuts

MAX_REFUSED = 8  # samples of a batch that images_cpu decodes and DALI does not, before images_cpu takes the rest
MAX_GIVEN_UP = 3  # batches in a row, before DALI counts as broken

_PLACEHOLDER = (0, 0, PLACEHOLDER_SIDE, PLACEHOLDER_SIDE)  # the placeholder's region

logger = get_logger(__name__)

Pixels = NDArray[np.uint8]  # (h, w, 3)


class Fetched:
    """A batch of encoded samples for DALI. Each thread writes rows of its own."""

    def __init__(self, num_samples: int, height: int, width: int) -> None:
        self.samples: list[EncodedSample | None] = [None] * num_samples  # for DALI; None for rows that it does not make
        self.cuts = Cuts(  # the placeholder's, until a sample takes the row
            region=_filled(num_samples, _PLACEHOLDER),
            size=_filled(num_samples, (height, width)),
            window=_filled(num_samples, (0, 0, height, width)),
            flip=np.zeros((num_samples, 2), np.bool_),
        )
        self.by_hand: dict[int, Pixels] = {}  # row -> the pixels that images_cpu made
        self.is_open = True  # whether samples may still be given to DALI

    def give(self, first: int, samples: Sequence[EncodedSample], cuts: Cuts) -> None:
        """Give these samples, whose rows count from `first`, to DALI."""
        rows = np.array([first + sample.row for sample in samples], np.int64)
        for name in ("region", "size", "window", "flip"):
            getattr(self.cuts, name)[rows] = getattr(cuts, name)
        for row, sample in zip(rows.tolist(), samples, strict=True):
            self.samples[row] = sample

    def take_back(self, row: int) -> None:
        """Take this row from DALI."""
        self.samples[row] = None
        self.cuts.region[row] = _PLACEHOLDER

    def forget(self, row: int) -> None:
        """Empty the row, both for DALI and of what images_cpu made."""
        self.take_back(row)
        self.by_hand.pop(row, None)

    def rows_given(self) -> list[int]:
        """Return the rows that DALI makes."""
        return [row for row, sample in enumerate(self.samples) if sample is not None]

    def num_given(self, rows: range) -> int:
        """Return how many of these rows DALI makes."""
        return len(rows) - self.samples[rows.start : rows.stop].count(None)

    def encoded(self) -> list[bytes]:
        """Return the bytes for each row; the placeholder's for rows that DALI does not make."""
        instead = placeholder()
        return [instead if sample is None else sample.data for sample in self.samples]


class FetchWorker:
    """Fetches blocks for one thread, and makes the rows that DALI cannot."""

    def __init__(self, worker: BlockWorker, geometry: Recipe, graph: GraphOptions) -> None:
        self._worker = worker
        self._geometry = geometry
        self._form = graph.form
        self._size = (graph.height, graph.width)

    def load(
        self, entries: Entries, rows: range, draws: Draws, batch: Fetched, first: int, *, leave_out: Collection[int] = ()
    ) -> BlockReport:
        """Fetch samples `rows` of `entries` into the batch's rows from `first` on. Otherwise as `BlockWorker.load`."""
        report = BlockReport()
        samples = self._worker.read(entries, rows, report, leave_out=leave_out)
        start_ns = time.perf_counter_ns()
        if samples:
            self._share_out(samples, draws_of(samples, draws), batch, first, report)
        report.decode_ns = time.perf_counter_ns() - start_ns
        return report

    def take_over(self, batch: Fetched, rows: list[int]) -> list[BadRow]:
        """Make these rows with images_cpu instead of DALI. Returns those that do not decode. All count from the batch's first."""
        bad: list[BadRow] = []
        for row in rows:
            batch.by_hand.update(self._made_for_dali(batch, row, bad))
            batch.take_back(row)
        return bad

    def sift(self, batch: Fetched) -> list[BadRow]:
        """Take from DALI the rows that do not decode. Otherwise as `take_over`."""
        bad: list[BadRow] = []
        for row in batch.rows_given():
            if not self._made_for_dali(batch, row, bad):
                batch.take_back(row)
        return bad

    def _made_for_dali(self, batch: Fetched, row: int, bad: list[BadRow]) -> dict[int, Pixels]:
        sample = batch.samples[row]
        assert sample is not None
        cuts = dataclasses.replace(batch.cuts[np.array([row])], fill=self._form.fill, interpolation=self._form.interpolation)
        return self._made([sample._replace(row=row)], [cuts], bad)

    def _share_out(self, samples: list[EncodedSample], draws: Draws, batch: Fetched, first: int, report: BlockReport) -> None:
        """Give DALI the samples that it can make, and make the others. The split does not depend on the block."""
        chain = self._geometry.draw_cuts(draws, sizes_of(samples))
        if len(chain) > 1 and len(samples) > 1:  # perhaps because of one sample alone
            for place, sample in enumerate(samples):
                self._share_out([sample], draws[place : place + 1], batch, first, report)
            return
        fits = self._form.takes(chain) & (chain[0].size.prod(axis=1) <= MAX_PIXELS) & batch.is_open
        fits &= [fit and can_decode(data, header) for fit, (_, data, header) in zip(fits.tolist(), samples, strict=True)]
        if fits.all():
            batch.give(first, samples, chain[0])
            return
        given, left = np.flatnonzero(fits), np.flatnonzero(~fits)
        if len(given):
            batch.give(first, [samples[place] for place in given], chain[0][given])
        if len(left):
            made = self._made([samples[place] for place in left], [cuts[left] for cuts in chain], report.bad)
            batch.by_hand.update({first + row: pixels for row, pixels in made.items()})

    def _made(self, samples: list[EncodedSample], chain: list[Cuts], bad: list[BadRow]) -> dict[int, Pixels]:
        """Return pixels by row, as images_cpu makes them. Adds samples that do not decode to `bad`."""
        made = {sample.row: np.empty((*self._size, 3), np.uint8) for sample in samples}
        report = BlockReport()
        self._worker.cut(samples, chain, made, report)
        for found in report.bad:
            del made[found.row]
        bad += report.bad
        return made


class DaliStage:
    """Turns fetched batches into pixels. Thread-safe; a pipeline serves one thread at a time."""

    def __init__(self, graph: GraphOptions, *, num_pipelines: int) -> None:
        self.graph = graph
        self.lanes = Lanes(num_pipelines, ObjectPool(lambda: DaliPipeline(graph)))
        self._num_given_up = 0  # in a row
        self._has_warned = False

    def decoder_device(self) -> str:
        """Return where the graph decodes: "gpu" or "cpu". Builds the graph if necessary. Raises BackendError if that fails."""
        pipeline = self.lanes.pool.borrow()
        try:
            device: str = pipeline.build()
            return device
        finally:
            self.lanes.pool.give_back(pipeline)

    def run(
        self,
        batch: Fetched,
        pipeline: DaliPipeline,
        worker: FetchWorker,
        *,
        stream: Stream | None,
        settle: Callable[[BadRow], None],
    ) -> tuple[torch.Tensor | None, object]:
        """Return the pixels of the rows that DALI makes, and an object to keep alive while they are used.

        The pixels are those of `DaliPipeline.run`; None if images_cpu made every row. `settle` is called with each sample
        that turns out bad; rows count from the batch's first, and `settle` may load another sample into the row. A sample that
        fails is taken out and the others go through DALI again, so that they are what they would be without it. Raises what
        `settle` raises, and BackendError if DALI keeps failing although samples decode.
        """
        num_bad = num_refused = 0
        while any(batch.samples):
            try:
                pixels, keep = pipeline.run(batch.encoded(), batch.cuts, stream)
            except RunError as exc:
                if exc.row is None or batch.samples[exc.row] is None or num_refused == MAX_REFUSED:
                    batch.is_open = False
                    bad = worker.take_over(batch, batch.rows_given())
                    self._give_up(exc)
                else:
                    pipeline.forgive()
                    bad = worker.take_over(batch, [exc.row])
                    if not bad:
                        num_refused += 1
                        self._tell_refused(exc)
                    elif num_bad == 1:  # there may be many, and each would cost a run of DALI
                        bad += worker.sift(batch)
                    num_bad += len(bad)
                for found in bad:
                    settle(found)
            else:
                self._num_given_up = 0
                return pixels, keep
        return None, None

    def _give_up(self, exc: RunError) -> None:
        """Count a batch that images_cpu had to make as a whole. Raises BackendError after too many in a row."""
        self._num_given_up += 1
        if self._num_given_up >= MAX_GIVEN_UP:
            raise BackendError(
                f"DALI failed on {self._num_given_up} batches in a row, which images_cpu made instead: {exc}; pass "
                "backend='images_cpu' to continue without DALI"
            ) from exc
        logger.warning("images_cpu made a batch because DALI failed on it: %s", exc)

    def _tell_refused(self, exc: RunError) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("DALI does not decode a sample that images_cpu decodes (%s); further ones are not reported", exc)


def _filled(num_samples: int, values: tuple[int, ...]) -> NDArray[np.int64]:
    return np.tile(np.array(values, np.int64), (num_samples, 1))
