"""The demo's network, its epoch, and the two loaders that feed it."""

from __future__ import annotations

import copy
import itertools
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import datapipe as dp
from datapipe.cli.torch_baseline import torch_loader
from datapipe.containers import open_index

TITLES = {"torch": "torch's DataLoader on the files", "datapipe": "datapipe's on the shards"}
CROP = 160  # pixels
BATCH_SIZE = 64
_ROUNDS = 3  # of each loader alone, after one to warm up
_SEED = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one loader brought."""

    alone: float  # images/s with nobody to feed
    images_per_s: float  # of the training epoch
    waiting: float  # share of the epoch that the loop stood in next()
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
    """Both outcomes, and under which conditions."""

    outcomes: dict[str, Outcome]
    batch_size: int
    num_workers: int
    num_classes: int

    @property
    def chance_loss(self) -> float:
        """Cross-entropy, in nats, of guessing."""
        return math.log(self.num_classes)


@dataclass(frozen=True, slots=True)
class Loaders:
    """Both loaders over the same photographs, and the weights that training starts from."""

    by_name: dict[str, Any]  # of (images, labels) batches
    network: nn.Module
    batch_size: int
    num_workers: int
    num_classes: int


def make_loaders(photos: Path, shards: Path, *, num_workers: int) -> Loaders:
    """Raises OptionError for sets with fewer samples than one batch."""
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
        raise dp.OptionError(f"{photos}: {num_samples} images are fewer than one batch of {BATCH_SIZE}; bring more")
    theirs = torch_loader(open_index(photos), size=CROP, batch_size=BATCH_SIZE, num_workers=num_workers)
    # Torch's worker processes must be forked before our threads run, so it goes first; they stay.
    return Loaders({"torch": theirs, "datapipe": ours}, small_network(num_classes), BATCH_SIZE, num_workers, num_classes)


def rates_alone(loaders: Loaders) -> dict[str, float]:
    """Median images/s over epochs, in turns, in which batches are thrown away."""
    torch.manual_seed(_SEED)
    rates: dict[str, list[float]] = {name: [] for name in loaders.by_name}
    for number in range(_ROUNDS + 1):
        for name, loader in loaders.by_name.items():
            started = time.perf_counter()
            num_images = sum(len(labels) for _, labels in loader)
            if number:
                rates[name].append(num_images / (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in rates.items()}


def train(loaders: Loaders, name: str, alone: float) -> Outcome:
    """One epoch from the common weights."""
    torch.manual_seed(_SEED)
    network, batches = copy.deepcopy(loaders.network), loaders.by_name[name]
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=8e-3, total_steps=len(batches))
    losses: list[float] = []
    num_images, waited_s = 0, 0.0
    started = asked = time.perf_counter()
    for images, labels in batches:
        waited_s += time.perf_counter() - asked
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        num_images += len(labels)
        asked = time.perf_counter()
    elapsed_s = time.perf_counter() - started
    return Outcome(alone, num_images / elapsed_s, waited_s / elapsed_s, losses)


def small_network(num_classes: int) -> nn.Module:
    """Four convolutions: about 20 million multiplications per image, so that loading decides the pace."""
    torch.manual_seed(_SEED)
    widths = (3, 24, 48, 96, 96)
    layers: list[nn.Module] = []
    for number, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        kernel, stride = (7, 4) if number == 0 else (3, 2)
        layers += [
            nn.Conv2d(fan_in, fan_out, kernel, stride=stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(fan_out),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], num_classes))
