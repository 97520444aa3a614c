"""Transforms and loaders that several tests use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fixtures import open_images

import datapipe as dp
from datapipe import transforms as T

SIZE = 24
CROP = [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()]  # uint8
TRAIN = [*CROP, T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
EVAL = [T.Resize((SIZE, SIZE))]


def make(path: str | Path | dp.Images, **changes: Any) -> dp.DataLoader:
    """A loader of small uint8 batches, changed as asked."""
    return open_images(path, **({"batch_size": 5, "transform": CROP, "num_workers": 2, "seed": 0} | changes))


def ids_of(loader: dp.DataLoader) -> list[list[int]]:
    """The ids of each batch of one pass, of a loader with output="dict"."""
    return [batch["id"].tolist() for batch in loader]


def num_threads(loader: dp.DataLoader) -> int:
    """Of one open iterator: those that load, and DALI's where it decodes."""
    dali = loader.choice.dali
    return loader.num_workers + (0 if dali is None else dali.num_pipelines)
