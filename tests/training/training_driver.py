"""A training run that writes down which samples it was given, and can be hit by a signal before any batch.

Called by tests in their own process, and as a script, with its settings as JSON, in processes that are to die.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import datapipe as dp
from datapipe import transforms as T
from datapipe.training import TrainingReport, TrainOptions, fit
from datapipe.training.process_group import launched_group


@dataclass(frozen=True)
class Settings:
    """Paths are strings: they travel as JSON."""

    photos: str
    others: str
    out: str
    ids: str  # a file for one line of sample ids per batch
    batch_size: int = 16
    epochs: int = 3
    accumulate: int = 1
    dropout: float = 0.0
    signal: int = 0
    signal_before: int = -1  # the batch, counted from 0 in this process, before which the signal comes
    signal_rank: int = 0
    save_every_steps: int | None = None


class Recorded:
    """A loader that writes the ids of each batch down before handing it out."""

    def __init__(self, loader: dp.DataLoader, settings: Settings, rank: int) -> None:
        self._loader, self._settings, self._rank, self._num = loader, settings, rank, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        settings = self._settings
        with open(settings.ids, "a") as file:
            for batch in self._loader:
                if self._num == settings.signal_before and self._rank == settings.signal_rank:
                    os.kill(os.getpid(), settings.signal)
                self._num += 1
                real = batch["real"] if "real" in batch else torch.ones(len(batch["id"]), dtype=torch.bool)
                print(json.dumps(batch["id"][real].tolist()), file=file, flush=True)
                yield batch


def make_network(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Dropout(dropout), nn.Linear(32, 4),
    )  # fmt: skip


def train(settings: Settings, *, rank: int = 0) -> TrainingReport:
    """Go on with the run in `settings.out`, or begin one."""
    pixels = [T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
    arguments: dict[str, Any] = {"batch_size": settings.batch_size, "num_workers": 2, "device": "cpu", "tail": "mask"}
    loader = dp.DataLoader(
        settings.photos,
        shuffle=True,
        seed=3,
        output="dict",
        transform=[T.RandomResizedCrop(32), T.RandomHorizontalFlip(), *pixels],
        **arguments,
    )
    val_loader = dp.DataLoader(settings.others, transform=[T.Resize((32, 32)), *pixels], **arguments)
    torch.manual_seed(0)
    options = TrainOptions(
        epochs=settings.epochs,
        lr=5e-3,
        accumulate=settings.accumulate,
        out=Path(settings.out),
        resume="auto",
        save_every_steps=settings.save_every_steps,
        log_every=1,
        display="none",
    )
    recorded = Recorded(loader, settings, rank)
    return fit(make_network(settings.dropout), recorded, options=options, val_loader=val_loader)


def step_lines(out: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that are of steps, without what depends on the clock."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("step", "epoch", "loss", "accuracy", "lr")} for line in lines if "loss" in line]


def ids_of(path: Path) -> list[list[int]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def as_script(settings: Settings) -> list[str]:
    """The command that runs this file with the settings."""
    return [sys.executable, __file__, json.dumps(asdict(settings))]


if __name__ == "__main__":
    with launched_group(torch.device("cpu")):
        train(Settings(**json.loads(sys.argv[1])), rank=int(os.environ.get("RANK", "0")))
