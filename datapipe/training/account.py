"""Where a run's figures go: the display, metrics.jsonl, run.json and the caller's own function; on rank 0 alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from datapipe.errors import StorageError
from datapipe.training.checkpoint import Place
from datapipe.training.early_stopping import Best
from datapipe.training.options import TrainOptions
from datapipe.training.progress import RunDisplay
from datapipe.training.record import METRICS, RECORD, EpochMetrics, MetricsLog, RunRecord, StepMetrics


class Account:
    """Takes down a run from `place` on. On other ranks than 0 (`leads` False) it keeps the epochs and says nothing."""

    def __init__(
        self,
        options: TrainOptions,
        *,
        place: Place,
        num_steps: int,
        facts: Mapping[str, Any],
        leads: bool,
        on_step: Callable[[StepMetrics], None] | None,
    ) -> None:
        kind = options.display if leads else "none"
        self._display = RunDisplay(kind, num_steps=num_steps, num_epochs=options.epochs, first_step=place.step)
        self._on_step = on_step if leads else None
        self._log: MetricsLog | None = None
        self._record: RunRecord | None = None
        self._epochs: list[EpochMetrics] = []
        if options.out is not None and leads:
            out = Path(options.out)
            try:
                out.mkdir(parents=True, exist_ok=True)
                self._log = MetricsLog(out / METRICS, place)
            except OSError as exc:
                raise StorageError(f"{out}: cannot be written ({exc}); choose another out") from exc
            self._record = RunRecord(out / RECORD, facts, resumed_at=place.step or None)
        self.write("running", Best())

    @property
    def epochs(self) -> list[EpochMetrics]:
        """All epochs so far; those of processes before this one only where they were written down."""
        return self._epochs if self._log is None else self._log.epochs

    def say(self, text: str) -> None:
        self._display.say(text)

    def advance(self) -> None:
        self._display.advance()

    def step(self, metrics: StepMetrics) -> None:
        if self._log is not None:
            self._log.write(metrics)
        self._display.show(metrics)
        if self._on_step is not None:
            self._on_step(metrics)

    def epoch(self, metrics: EpochMetrics, best: Best) -> None:
        if self._log is None:
            self._epochs.append(metrics)
        else:
            self._log.write(metrics)
        self._display.show_epoch(metrics)
        self.write("running", best)

    def write(self, status: str, best: Best) -> None:
        """Bring run.json up to date."""
        if self._record is not None:
            self._record.write(status, self.epochs, dataclasses.asdict(best))

    def close(self) -> None:
        self._display.close()
        if self._log is not None:
            self._log.close()
