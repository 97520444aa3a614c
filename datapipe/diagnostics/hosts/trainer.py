"""Hugging Face Transformers' `Trainer`: measure how long training waits for data, and log it with the Trainer's own logs."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from datapipe.diagnostics.monitor import Monitor


def add_monitor(trainer: Trainer, **options: Any) -> Monitor:
    """Measure a Trainer's loaders while it trains, and return the `datapipe.Monitor` that does; `options` are its arguments.

    Its latest figures join the Trainer's logs, which come every `logging_steps` and go where `report_to` says.
    """
    monitor = Monitor(**options)
    # Ahead of the callbacks that report logs, or these would have reported them already.
    trainer.callback_handler.callbacks.insert(0, _MonitorCallback(monitor))
    return monitor


class _MonitorCallback(TrainerCallback):  # type: ignore[misc]
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if not self._monitor.is_open:
            self._monitor.__enter__()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **others: Any
    ) -> None:
        figures = self._monitor.figures()
        if figures is not None and logs is not None:
            logs.update(figures)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if self._monitor.is_open:
            self._monitor.__exit__(None, None, None)
