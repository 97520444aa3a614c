"""PyTorch Lightning: a callback that measures how long training waits for data, and logs it where the Trainer logs."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from datapipe.diagnostics.live import EVERY
from datapipe.diagnostics.monitor import Monitor


class MonitorCallback(Callback):  # type: ignore[misc]
    """`Trainer(callbacks=[MonitorCallback()])`: a `datapipe.Monitor` of all loaders while `fit` lasts.

    Its figures go to the Trainer's loggers, with `trainer.global_step`. `every`, `saves` and `quiet` are those
    of `datapipe.Monitor`.
    """

    def __init__(self, *, every: int = EVERY, saves: str | os.PathLike[str] | None = None, quiet: bool = False) -> None:
        self._options: dict[str, Any] = {"every": every, "saves": saves, "quiet": quiet}
        self.monitor: Monitor | None = None  # made by `fit`, in the process that trains; `monitor.screen()` says more

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin to measure."""
        if stage == "fit":
            self.monitor = Monitor(**self._options)
            self.monitor.__enter__()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        """Log the figures of the latest steps, once they are known."""
        figures = None if self.monitor is None else self.monitor.figures()
        if figures is not None:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End measuring."""
        if stage == "fit":
            self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End measuring."""
        self._end()

    def _end(self) -> None:
        if self.monitor is not None and self.monitor.is_open:
            self.monitor.__exit__(None, None, None)
