"""Images by way of DALI: blocks are fetched and looked at by threads, then the batch goes through a pipeline whole.

Rows that DALI must not see, or would not give as Pillow does, are made by `images_cpu` while the block is fetched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.backends.images_cpu import BlockReport, BlockWorker, EncodedSample, draws_of, sizes_of
from datapipe.backends.images_dali.gate import PLACEHOLDER_SIDE, can_decode, placeholder
from datapipe.backends.images_dali.pipeline import DaliPipeline, RunError
from datapipe.backends.images_dali.settings import GraphOptions
from datapipe.draws import Draws
from datapipe.errors import BackendError
from datapipe.index import Entries
from datapipe.loader.lending import Lending
from datapipe.transforms import Recipe
from datapipe.transforms.protocols import Cuts

MAX_FAILURES = 3  # in a row, on batches in which nothing is bad, before DALI is taken to be broken

logger = logging.getLogger(__name__)

Pixels = NDArray[np.uint8]  # (h, w, 3)


class Fetched:
    """A batch on its way to DALI. Threads write rows of their own."""

    def __init__(self, num_samples: int, height: int, width: int) -> None:
        side = PLACEHOLDER_SIDE
        self.samples: list[EncodedSample | None] = [None] * num_samples  # for DALI; None where it has no part
        self.cuts = Cuts(  # the placeholder's, until a sample takes its row
            region=_filled(num_samples, (0, 0, side, side)),
            size=_filled(num_samples, (height, width)),
            window=_filled(num_samples, (0, 0, height, width)),
            flip=np.zeros((num_samples, 2), np.bool_),
        )
        self.by_hand: dict[int, Pixels] = {}  # row -> what images_cpu made of it
        self.is_open = True  # DALI is still to come

    def give(self, first: int, samples: Sequence[EncodedSample], cuts: Cuts) -> None:
        """Leave these samples, whose rows count from `first`, to DALI."""
        rows = np.array([first + sample.row for sample in samples], np.int64)
        for name in ("region", "size", "window", "flip"):
            getattr(self.cuts, name)[rows] = getattr(cuts, name)
        for row, sample in zip(rows.tolist(), samples, strict=True):
            self.samples[row] = sample

    def encoded(self) -> list[bytes]:
        """The bytes for each row, the placeholder's where DALI has no part."""
        return [placeholder() if sample is None else sample.data for sample in self.samples]


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
            chain = self._geometry.draw_cuts(draws_of(samples, draws), sizes_of(samples))
            fits = batch.is_open and self._form.takes(chain)
            given = [place for place, (_, data, header) in enumerate(samples) if fits and can_decode(data, header)]
            if given:
                batch.give(first, [samples[place] for place in given], chain[0][np.array(given)])
            if len(given) < len(samples):
                left = [place for place in range(len(samples)) if place not in given]
                self._make([samples[place] for place in left], [cuts[np.array(left)] for cuts in chain], batch, first, report)
        report.decode_ns = time.perf_counter_ns() - start_ns
        return report

    def redo(self, batch: Fetched) -> BlockReport:
        """Make by hand what DALI was to make. Rows in the report count from the batch's first."""
        report = BlockReport()
        samples = [sample._replace(row=row) for row, sample in enumerate(batch.samples) if sample is not None]
        if samples:
            rows = np.array([sample.row for sample in samples], np.int64)
            self._make(samples, [batch.cuts[rows]], batch, 0, report)
        batch.samples = [None] * len(batch.samples)
        return report

    def _make(self, samples: list[EncodedSample], chain: list[Cuts], batch: Fetched, first: int, report: BlockReport) -> None:
        made = {sample.row: np.empty((*self._size, 3), np.uint8) for sample in samples}
        num_bad = len(report.bad)
        self._worker.cut(samples, chain, made, report)
        for bad in report.bad[num_bad:]:
            made.pop(bad.row, None)
        batch.by_hand.update({first + row: pixels for row, pixels in made.items()})


class DaliStage:
    """What turns fetched batches into pixels. Thread-safe; a pipeline serves one thread at a time."""

    def __init__(self, graph: GraphOptions, *, num_pipelines: int) -> None:
        self.graph = graph
        self.num_pipelines = num_pipelines
        self.pipelines = Lending(lambda: DaliPipeline(graph))

    def run(
        self, batch: Fetched, pipeline: DaliPipeline, worker: FetchWorker, stream: torch.cuda.Stream | None
    ) -> tuple[torch.Tensor | None, object, BlockReport]:
        """Pixels of the rows that DALI makes, what to keep while they are used, and what became of the samples.

        The pixels are those of `DaliPipeline.run`; None where every row was, or had to be, made by hand. Rows in the
        report count from the batch's first. Raises BackendError if DALI keeps failing with nothing bad in its batches.
        """
        batch.is_open = False
        if not any(batch.samples):
            return None, None, BlockReport()
        try:
            pixels, keep = pipeline.run(batch.encoded(), batch.cuts, stream)
            return pixels, keep, BlockReport()
        except RunError as exc:
            report = worker.redo(batch)
            if not report.bad:
                if pipeline.num_failures >= MAX_FAILURES:
                    raise BackendError(
                        f"DALI failed {pipeline.num_failures} times in a row on batches in which nothing is bad: {exc}; pass "
                        "backend='images_cpu' to go on without it"
                    ) from exc
                logger.warning("a batch in which nothing is bad was redone by images_cpu: %s", exc)
            return None, None, report


def _filled(num_samples: int, values: tuple[int, ...]) -> NDArray[np.int64]:
    return np.tile(np.array(values, np.int64), (num_samples, 1))
