"""Loaders that decode by DALI on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fixtures import open_images
from recipes import CROP

import datapipe as dp


def make(path: Path | dp.Images, **changes: Any) -> dp.DataLoader:
    defaults = {"batch_size": 5, "transform": CROP, "num_workers": 2, "output": "dict", "backend": "dali", "device": "cpu"}
    return open_images(path, **(defaults | changes))


def images_of(loader: dp.DataLoader) -> dict[int, torch.Tensor]:
    """By id."""
    return {int(sample): image.clone() for batch in loader for sample, image in zip(batch["id"], batch["image"], strict=True)}
