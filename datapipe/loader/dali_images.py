"""Images by way of DALI: blocks are fetched and looked at by threads, then the batch goes through a pipeline whole.

Rows that DALI must not see, or would not give as Pillow does, are made by `images_cpu` while the block is fetched.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.backends.images_cpu import BadRow, BlockReport, BlockWorker, EncodedSample, draws_of, sizes_of
from datapipe.backends.images_dali.gate import PLACEHOLDER_SIDE, can_decode, placeholder
from datapipe.backends.images_dali.pipeline import DaliPipeline, RunError
from datapipe.backends.images_dali.settings import GraphOptions
from datapipe.codecs.probe import MAX_PIXELS
from datapipe.core.errors import BackendError
from datapipe.core.printable import get_logger
from datapipe.index.entries import Entries
from datapipe.loader.lending import Lending
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.protocols import Cuts

MAX_REFUSED = 8  # samples of one batch that images_cpu decodes and DALI does not, before the rest is not tried either
MAX_GIVEN_UP = 3  # batches in a row, before DALI is taken to be broken

_PLACEHOLDER = (0, 0, PLACEHOLDER_SIDE, PLACEHOLDER_SIDE)  # its region

logger = get_logger(__name__)

Pixels = NDArray[np.uint8]  # (h, w, 3)


class Fetched:
    """A batch on its way to DALI. Threads write rows of their own."""

    def __init__(self, num_samples: int, height: int, width: int) -> None:
        self.samples: list[EncodedSample | None] = [None] * num_samples  # for DALI; None where it has no part
        self.cuts = Cuts(  # the placeholder's, until a sample takes its row
            region=_filled(num_samples, _PLACEHOLDER),
            size=_filled(num_samples, (height, width)),
            window=_filled(num_samples, (0, 0, height, width)),
            flip=np.zeros((num_samples, 2), np.bool_),
        )
        self.by_hand: dict[int, Pixels] = {}  # row -> what images_cpu made of it
        self.is_open = True  # DALI may be given samples

    def give(self, first: int, samples: Sequence[EncodedSample], cuts: Cuts) -> None:
        """Leave these samples, whose rows count from `first`, to DALI."""
        rows = np.array([first + sample.row for sample in samples], np.int64)
        for name in ("region", "size", "window", "flip"):
            getattr(self.cuts, name)[rows] = getattr(cuts, name)
        for row, sample in zip(rows.tolist(), samples, strict=True):
            self.samples[row] = sample

    def take_back(self, row: int) -> None:
        """Let DALI have no part in this row."""
        self.samples[row] = None
        self.cuts.region[row] = _PLACEHOLDER

    def forget(self, row: int) -> None:
        """Let the row hold nothing, neither for DALI nor made by hand."""
        self.take_back(row)
        self.by_hand.pop(row, None)

    def rows_given(self) -> list[int]:
        """The rows that are DALI's."""
        return [row for row, sample in enumerate(self.samples) if sample is not None]

    def num_given(self, rows: range) -> int:
        """How many of these rows are DALI's."""
        return len(rows) - self.samples[rows.start : rows.stop].count(None)

    def encoded(self) -> list[bytes]:
        """The bytes for each row, the placeholder's where DALI has no part."""
        instead = placeholder()
        return [instead if sample is None else sample.data for sample in self.samples]


class FetchWorker:
    """Fetches blocks for one thread."""

    def __init__(self, worker: BlockWorker, geometry: Recipe, graph: GraphOptions) -> None:
        self._worker = worker
        self._geometry = geometry
        self._form = graph.form
        self._size = (graph.height, graph.width)

    def load(self, entries: Entries, rows: range, draws: Draws, batch: Fetched, first: int) -> BlockReport:
        """Fetch samples `rows` of `entries` into the batch's rows from `first` on. As `BlockWorker.load` otherwise."""
        report = BlockReport()
        samples = self._worker.read(entries, rows, report)
        start_ns = time.perf_counter_ns()
        if samples:
            self._share_out(samples, draws_of(samples, draws), batch, first, report)
        report.decode_ns = time.perf_counter_ns() - start_ns
        return report

    def take_over(self, batch: Fetched, rows: list[int]) -> list[BadRow]:
        """Make by hand what DALI was to make of these rows; those that do not decode. All count from the batch's first."""
        bad: list[BadRow] = []
        for row in rows:
            batch.by_hand.update(self._made_for_dali(batch, row, bad))
            batch.take_back(row)
        return bad

    def sift(self, batch: Fetched) -> list[BadRow]:
        """Take out of DALI's hands what does not decode. As `take_over` otherwise."""
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
        """Leave to DALI what it makes, and make the others. Which they are does not depend on who is in the block."""
        chain = self._geometry.draw_cuts(draws, sizes_of(samples))
        if len(chain) > 1 and len(samples) > 1:  # it may be for the sake of one of them
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
        """By row, as images_cpu makes them; those that do not decode are added to `bad`."""
        made = {sample.row: np.empty((*self._size, 3), np.uint8) for sample in samples}
        report = BlockReport()
        self._worker.cut(samples, chain, made, report)
        for found in report.bad:
            del made[found.row]
        bad += report.bad
        return made


class DaliStage:
    """What turns fetched batches into pixels. Thread-safe; a pipeline serves one thread at a time."""

    def __init__(self, graph: GraphOptions, *, num_pipelines: int) -> None:
        self.graph = graph
        self.num_pipelines = num_pipelines
        self.pipelines = Lending(lambda: DaliPipeline(graph))
        self._num_given_up = 0  # batches in a row
        self._has_warned = False

    def decoder_device(self) -> str:
        """Return where the graph decodes: "gpu" or "cpu". Builds it if need be. Raises BackendError where that fails."""
        pipeline = self.pipelines.borrow()
        try:
            return pipeline.build()
        finally:
            self.pipelines.give_back(pipeline)

    def run(
        self,
        batch: Fetched,
        pipeline: DaliPipeline,
        worker: FetchWorker,
        *,
        stream: torch.cuda.Stream | None,
        settle: Callable[[BadRow], None],
    ) -> tuple[torch.Tensor | None, object]:
        """Pixels of the rows that DALI makes, and what to keep while they are used.

        The pixels are those of `DaliPipeline.run`; None where every row was, or had to be, made by hand. `settle` is
        told of samples that turn out bad; their rows count from the batch's first, and it may load others into them.
        A sample that fails is taken out and the others go through DALI again, so that they are what they would be
        without it. Raises what `settle` raises, and BackendError if DALI keeps failing for no such reason.
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
                    elif num_bad == 1:  # there may be many, and each would cost a run
                        bad += worker.sift(batch)
                    num_bad += len(bad)
                for found in bad:
                    settle(found)
            else:
                self._num_given_up = 0
                return pixels, keep
        return None, None

    def _give_up(self, exc: RunError) -> None:
        """A batch had to be made by hand as a whole."""
        self._num_given_up += 1
        if self._num_given_up >= MAX_GIVEN_UP:
            raise BackendError(
                f"DALI failed on {self._num_given_up} batches in a row, which images_cpu then made: {exc}; pass "
                "backend='images_cpu' to go on without DALI"
            ) from exc
        logger.warning("images_cpu made a batch on which DALI failed: %s", exc)

    def _tell_refused(self, exc: RunError) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "DALI does not decode a sample that images_cpu decodes (%s); there may be more, not told one by one", exc
            )


def _filled(num_samples: int, values: tuple[int, ...]) -> NDArray[np.int64]:
    return np.tile(np.array(values, np.int64), (num_samples, 1))
