"""Trainings by frameworks that a monitor watches, each run as a script of its own: prints what was logged, as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, EVERY = 260, 4, 40


class Slow(Dataset[dict[str, torch.Tensor]]):
    """Each sample waits for a millisecond, as for a disk."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        time.sleep(0.001)
        return {"x": torch.full((2,), float(number)), "labels": torch.zeros(1)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x / (STEPS * BATCH))
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


def _import_torchvision() -> None:
    """As the hosts do; its compiled part need not fit this torch."""
    with contextlib.suppress(ImportError):
        from benchmarks.contenders.torchvision_transforms import import_torchvision

        import_torchvision()


def by_lightning(saves: Path) -> list[Any]:
    _import_torchvision()
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    from datapipe.diagnostics.hosts.lightning import MonitorCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    logged: list[Any] = []

    class Logger(CSVLogger):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            logged.append((metrics, step))

    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=Logger(str(saves / "csv")), enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[MonitorCallback(every=EVERY, saves=saves / "run.dpr")],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Slow(), batch_size=BATCH))
    return logged


def by_trainer(saves: Path) -> list[Any]:
    _import_torchvision()
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from datapipe.diagnostics.hosts.trainer import add_monitor

    logged: list[Any] = []

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            logged.append((dict(logs), state.global_step))

    arguments = TrainingArguments(
        output_dir=str(saves), per_device_train_batch_size=BATCH, num_train_epochs=1, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no", logging_steps=50, learning_rate=1e-6,
    )  # fmt: skip
    trainer = Trainer(model=Model(), args=arguments, train_dataset=Slow(), callbacks=[Reporter()])
    add_monitor(trainer, every=EVERY, saves=saves / "run.dpr")
    trainer.train()
    return logged


def by_accelerate(saves: Path) -> list[Any]:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    import datapipe as dp

    logged: list[Any] = []

    class Tracker(GeneralTracker):
        name, requires_logging_directory = "memory", False

        @property
        def tracker(self) -> list[Any]:
            return logged

        def store_init_configuration(self, values: dict[str, Any]) -> None: ...

        def log(self, values: dict[str, float], step: int | None = None, **others: Any) -> None:
            logged.append((values, step))

    accelerator = Accelerator(cpu=True, log_with=Tracker())
    accelerator.init_trackers("run")
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Slow(), batch_size=BATCH))
    with dp.Monitor(log=accelerator, every=EVERY, saves=saves / "run.dpr"):
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
    return logged


RUNS = {"lightning": by_lightning, "trainer": by_trainer, "accelerate": by_accelerate}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    found = RUNS[sys.argv[1]](Path(sys.argv[2]))
    Path(sys.argv[2], "logged.json").write_text(json.dumps(found))
