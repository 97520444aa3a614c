"""What tests of Lightning run in processes of their own. Each returns plain values."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

import datapipe as dp
from datapipe import transforms as T

TRANSFORM = (T.RandomResizedCrop(16), T.ToDtype(torch.float32, scale=True))
BATCH = 6


def make_loader(path: Path, **arguments: Any) -> dp.DataLoader:
    options: dict[str, Any] = {
        "batch_size": BATCH, "shuffle": True, "transform": list(TRANSFORM), "num_workers": 2, "seed": 3, "output": "dict",
    }  # fmt: skip
    return dp.DataLoader(path, **(options | arguments))


class Classifier(pl.LightningModule):
    """A linear model that writes down what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 16 * 16, 3)
        self.seen: list[tuple[int, list[int]]] = []  # (epoch, ids) of each training step
        self.sums: list[float] = []  # of the images of each
        self.validated: list[tuple[int, list[int]]] = []

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, batch["id"].tolist()))
        self.sums.append(round(batch["image"].sum().item(), 3))
        return self._loss(batch)

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.validated.append((self.current_epoch, batch["id"].tolist()))
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(batch["image"].flatten(1)), batch["label"])


class StopAt(pl.Callback):
    """Ends the process's training after so many steps in all, as an interruption would; `save` comes first."""

    def __init__(self, step: int, save: Path) -> None:
        self.step, self.save = step, save

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.save)
            raise InterruptedError


def fit(
    path: Path,
    loader: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    validate: bool = False,
    stop: tuple[int, Path] | None = None,
    checkpoint: Path | None = None,
) -> SimpleNamespace:
    """What a fit saw."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, train = Classifier(), make_loader(path, **(loader or {}))
    validation = make_loader(path, shuffle=False, batch_size=8) if validate else None
    options: dict[str, Any] = {
        "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
        "enable_checkpointing": False, "num_sanity_val_steps": 0, "max_epochs": 2,
    }  # fmt: skip
    callbacks = [StopAt(*stop)] if stop else []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        host = pl.Trainer(**(options | (trainer or {})), callbacks=callbacks)
        error = ""
        try:
            host.fit(model, train, validation, ckpt_path=checkpoint)
        except InterruptedError:
            error = "stopped"
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
    same = host.train_dataloader is train and (validation is None or host.val_dataloaders is validation)
    texts = [str(warning.message) for warning in caught]
    return SimpleNamespace(
        seen=model.seen,
        sums=model.sums,
        validated=model.validated,
        same_loader=same,
        num_batches=host.num_training_batches,
        warnings=texts,
        error=error,
    )


def random_numbers(path: Path, seeds_workers: bool) -> list[float]:
    """A draw from torch's random state at each step, as the process was seeded by Lightning."""
    drawn: list[float] = []

    class Draw(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            drawn.append(torch.rand(()).item())

    pl.seed_everything(11, workers=seeds_workers, verbose=False)
    train = make_loader(path, batch_size=25)
    host = pl.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        max_epochs=2, callbacks=[Draw()],
    )  # fmt: skip
    host.fit(Classifier(), train)
    return drawn


def fit_after_asking_for_the_length(path: Path) -> str:
    """As in a script that Lightning itself starts again for each rank: the environment does not show it beforehand."""
    rank = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")}
    train = make_loader(path)
    assert len(train) == 9
    os.environ |= rank
    host = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False, max_epochs=1)
    try:
        host.fit(Classifier(), train)
    except dp.errors.LifecycleError as exc:
        return str(exc)
    return "fitted"
