"""Transforms and loaders that several tests use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import datapipe as dp

SIZE = 24
CROP = [dp.RandomResizedCrop(SIZE), dp.RandomHorizontalFlip()]  # uint8
TRAIN = [*CROP, dp.ToDtype(torch.float32, scale=True), dp.Normalize(dp.IMAGENET_MEAN, dp.IMAGENET_STD)]
EVAL = [dp.Resize((SIZE, SIZE))]


def make(path: str | Path | dp.Dataset, **changes: Any) -> dp.DataLoader:
    """A loader of small uint8 batches, changed as asked."""
    return dp.DataLoader(path, **({"batch_size": 5, "transform": CROP, "num_workers": 2, "seed": 0} | changes))


def ids_of(loader: dp.DataLoader) -> list[list[int]]:
    """The ids of each batch of one pass, of a loader with output="dict"."""
    return [batch["id"].tolist() for batch in loader]


def num_threads(loader: dp.DataLoader) -> int:
    """Of one open iterator: those that load, and DALI's where it decodes."""
    dali = loader.choice.dali
    return loader.num_workers + (0 if dali is None else dali.num_pipelines)
