"""The figures of a run, and their display on standard error: a bar, or a line every ten seconds."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, TextIO

from datapipe.core.printable import printable
from datapipe.training.options import Display

_LINE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Mean figures over the steps since the previous line, over all ranks."""

    step: int  # weight updates so far
    epoch: int
    loss: float
    accuracy: float | None
    lr: float  # at the last of these steps
    images_per_s: float
    starvation: float | None  # of this pass so far, on rank 0


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """The figures of one epoch, over all ranks. None: not measured."""

    step: int
    epoch: int
    train_loss: float
    train_accuracy: float | None
    val_loss: float | None
    val_accuracy: float | None
    val_samples: int | None
    images_per_s: float | None  # for the part that this process trained, without validation
    starvation: float | None
    seconds: float  # for the same part, with validation


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
