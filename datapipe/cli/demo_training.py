"""Train the demo's epoch with each of two loaders, and show both outcomes: as JSON, a table, a picture."""

from __future__ import annotations

import copy
import functools
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import datapipe as dp
from datapipe.cli.bench import in_turns, torch_loader
from datapipe.cli.charts import Bar, draw_bars
from datapipe.cli.demo_script import network as small_network
from datapipe.containers import open_index
from datapipe.training import TrainOptions, fit

TITLES = {"torch": "torch's DataLoader on the files", "datapipe": "datapipe's on the shards"}
CROP = 160  # pixels
BATCH_SIZE = 64
_ROUNDS = 3  # per loader alone, after one to warm up
_SEED = 0


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results with one loader."""

    alone: float  # images/s without training
    images_per_s: float  # of the training epoch
    waiting: float  # share of the epoch that the loop spent in next()
    losses: list[float]  # one per step

    @property
    def first_loss(self) -> float:
        """The mean over the first tenth of the epoch."""
        return statistics.fmean(self.losses[: max(1, len(self.losses) // 10)])

    @property
    def last_loss(self) -> float:
        """The mean over the last tenth."""
        return statistics.fmean(self.losses[-max(1, len(self.losses) // 10) :])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both outcomes, and the conditions."""

    outcomes: dict[str, DemoResult]
    num_workers: int
    num_classes: int

    @property
    def chance_loss(self) -> float:
        """The cross-entropy of guessing, in nats."""
        return math.log(self.num_classes)


@dataclass(frozen=True, slots=True)
class Loaders:
    """Both loaders over the same photographs, and the weights from which training starts."""

    by_name: dict[str, Any]  # of (images, labels) batches
    network: nn.Module
    num_workers: int
    num_classes: int


def make_loaders(photos: Path, shards: Path, *, num_workers: int) -> Loaders:
    """Return the loaders. Raises OptionError for data with fewer samples than one batch."""
    ours = dp.DataLoader(
        shards,
        batch_size=BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        device="cpu",
        seed=_SEED,
        transform=[
            dp.RandomResizedCrop(CROP),
            dp.RandomHorizontalFlip(),
            dp.ToDtype(torch.float32, scale=True),
            dp.Normalize(dp.IMAGENET_MEAN, dp.IMAGENET_STD),
        ],
    )
    num_samples, num_classes = len(ours.dataset), len(ours.dataset.classes)
    if num_samples < BATCH_SIZE:
        raise dp.OptionError(f"{photos}: {num_samples} images are fewer than one batch of {BATCH_SIZE}; add more")
    theirs = torch_loader(open_index(photos), size=CROP, batch_size=BATCH_SIZE, num_workers=num_workers)
    torch.manual_seed(_SEED)
    network = small_network(num_classes)  # the same as in the diagnosed script, so that both show the same waiting
    # Torch's worker processes must be forked before our threads start, so its loader is first; the processes stay.
    return Loaders({"torch": theirs, "datapipe": ours}, network, num_workers, num_classes)


def rates_alone(loaders: Loaders) -> dict[str, float]:
    """Return median images/s over epochs, in turns, without using the batches."""
    torch.manual_seed(_SEED)

    def rate(loader: Any) -> float:
        started = time.perf_counter()
        return sum(len(labels) for _, labels in loader) / (time.perf_counter() - started)

    contenders = {name: functools.partial(rate, loader) for name, loader in loaders.by_name.items()}
    rates = in_turns(contenders, rounds=_ROUNDS)
    return {name: statistics.median(values) for name, values in rates.items()}


def train(loaders: Loaders, name: str, alone: float) -> DemoResult:
    """Train one epoch from the common weights."""
    losses: list[float] = []
    report = fit(
        copy.deepcopy(loaders.network),
        loaders.by_name[name],
        options=TrainOptions(
            epochs=1, lr=8e-3, weight_decay=0.01, warmup=0.3, seed=_SEED, log_every=1, channels_last=False, display="none"
        ),
        on_step=lambda metrics: losses.append(metrics.loss),
    )
    epoch = report.epochs[0]
    assert epoch.images_per_s is not None
    assert epoch.starvation is not None
    return DemoResult(alone, epoch.images_per_s, epoch.starvation, losses)


# -- both outcomes -----------------------------------------------------------------------------------


def as_result(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON-safe values."""
    return {
        "num_workers": comparison.num_workers,
        "batch_size": BATCH_SIZE,
        "contenders": {
            name: {
                "loader_images_per_s": round(one.alone, 1),
                "training_images_per_s": round(one.images_per_s, 1),
                "share_waiting_for_data": round(one.waiting, 4),
                "loss_first": round(one.first_loss, 4),
                "loss_last": round(one.last_loss, 4),
                "losses": [round(loss, 4) for loss in one.losses],
            }
            for name, one in comparison.outcomes.items()
        },
    }


def as_table(comparison: Comparison) -> str:
    """Return the comparison as text for people."""
    torch, ours = comparison.outcomes["torch"], comparison.outcomes["datapipe"]
    rows = [
        ("", "torch DataLoader", "datapipe", ""),
        ("", "on the files", "on the shards", ""),
        ("loader alone, images/s", f"{torch.alone:,.0f}", f"{ours.alone:,.0f}", f"{ours.alone / torch.alone:.1f} x"),
        (
            "training, images/s",
            f"{torch.images_per_s:,.0f}",
            f"{ours.images_per_s:,.0f}",
            f"{ours.images_per_s / torch.images_per_s:.1f} x",
        ),
        ("of that waiting for data", f"{torch.waiting:.0%}", f"{ours.waiting:.0%}", ""),
        ("loss at the start", f"{torch.first_loss:.2f}", f"{ours.first_loss:.2f}", f"chance {comparison.chance_loss:.2f}"),
        ("loss at the end", f"{torch.last_loss:.2f}", f"{ours.last_loss:.2f}", ""),
    ]
    lines = [f"{label:<26}{left:>18}{middle:>16}   {right}".rstrip() for label, left, middle, right in rows]
    note = f"one epoch, batches of {BATCH_SIZE}, {comparison.num_workers} workers, the same initial weights"
    return "\n".join([*lines, "", note])


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Write a PNG with a bar for the training with each loader. Raises StorageError."""
    torch, ours = comparison.outcomes["torch"], comparison.outcomes["datapipe"]
    bars = [Bar(name, *[one.images_per_s] * 3) for name, one in (("datapipe", ours), ("torch", torch))]
    waiting = f"waiting for data {ours.waiting:.0%} of the time with datapipe, {torch.waiting:.0%} with torch"
    draw_bars(
        path,
        bars,
        title="images per second of training",
        subtitle=f"{waiting}; last loss {ours.last_loss:.2f}, {torch.last_loss:.2f}",
    )
