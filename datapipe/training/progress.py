"""Report a run as it goes: on standard error, as a bar or a line every ten seconds, and in the files of its directory."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from datapipe.core.errors import StorageError
from datapipe.core.printable import printable
from datapipe.training.checkpoint import Place
from datapipe.training.options import Display, TrainOptions
from datapipe.training.record import METRICS, RECORD, EpochMetrics, MetricsLog, RunRecord, StepMetrics
from datapipe.training.schedule import Best

_LINE_EVERY_S = 10.0


class RunDisplay:
    """A display of a run of `num_steps` steps from `first_step` on. Not thread-safe; close it at the end."""

    def __init__(self, kind: Display, *, num_steps: int, num_epochs: int, first_step: int, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._num_steps, self._num_epochs, self._first_step = num_steps, num_epochs, first_step
        self._is_silent = kind == "none"
        self._bar: Any = None
        self._started_s = self._last_line_s = time.monotonic()
        if kind == "bar" or (kind == "auto" and self._stream.isatty()):
            from tqdm import tqdm

            self._bar = tqdm(
                total=num_steps,
                initial=first_step,
                unit=" step",
                file=self._stream,
                dynamic_ncols=True,
                leave=False,
                smoothing=0.1,
            )

    def advance(self) -> None:
        """Count one step."""
        if self._bar is not None:
            self._bar.update(1)

    def show(self, metrics: StepMetrics) -> None:
        """Show the state after an interval."""
        if self._bar is not None:
            self._bar.set_description(f"epoch {metrics.epoch + 1}/{self._num_epochs}", refresh=False)
            self._bar.set_postfix_str(_state(metrics))
            return
        now = time.monotonic()
        if now - self._last_line_s >= _LINE_EVERY_S:
            self._last_line_s = now
            done = metrics.step - self._first_step
            left_s = (now - self._started_s) / max(1, done) * (self._num_steps - metrics.step)
            place = f"epoch {metrics.epoch + 1}/{self._num_epochs}, step {metrics.step} of {self._num_steps}"
            self.say(f"{place}: {_state(metrics)}, {left_s:.0f} s left")

    def show_epoch(self, metrics: EpochMetrics) -> None:
        """Print a line for a finished epoch."""
        self.say(epoch_line(metrics, self._num_epochs))

    def say(self, text: str) -> None:
        """Print a line of text, above the bar if there is one."""
        if self._is_silent:
            return
        text = printable(text)
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def epoch_line(metrics: EpochMetrics, num_epochs: int) -> str:
    """Return the figures of an epoch in one line."""
    parts = [f"train loss {metrics.train_loss:.3f}"]
    if metrics.train_accuracy is not None:
        parts.append(f"accuracy {metrics.train_accuracy:.1%}")
    if metrics.val_loss is not None:
        parts.append(f"val loss {metrics.val_loss:.3f}")
    if metrics.val_accuracy is not None:
        parts.append(f"accuracy {metrics.val_accuracy:.1%}")
    if metrics.images_per_s is not None:
        parts.append(f"{metrics.images_per_s:,.0f} images/s")
    if metrics.starvation is not None:
        parts.append(f"starved {metrics.starvation:.0%}")
    return f"epoch {metrics.epoch + 1}/{num_epochs}  {'  '.join(parts)}  {metrics.seconds:.1f} s"


def _state(metrics: StepMetrics) -> str:
    starved = "" if metrics.starvation is None else f", starved {metrics.starvation:.0%}"
    return f"loss {metrics.loss:.3f}, {metrics.images_per_s:,.0f} images/s{starved}"


class RunLogger:
    """Records a run from `place` on. On ranks other than 0 (`leads` False) it keeps the epochs and prints nothing."""

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
        """All epochs so far; those of earlier processes only if the run is recorded in `out`."""
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
        """Update run.json."""
        if self._record is not None:
            self._record.write(status, self.epochs, dataclasses.asdict(best))

    def close(self) -> None:
        self._display.close()
        if self._log is not None:
            self._log.close()
