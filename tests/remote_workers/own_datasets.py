"""Datasets and functions of a user's own, in a module that services import, too."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, default_collate, get_worker_info

STARTED: list[int] = []


class Photos(Dataset[Any]):
    """Opens images with Pillow, and draws crops from all three random states."""

    def __init__(self, paths: list[str], *, bad: int = -1) -> None:
        self.paths, self.bad = paths, bad

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        if number == self.bad:
            raise ValueError(f"photo {number} is not for us")
        with Image.open(self.paths[number]) as image:
            left = random.randrange(8)
            made = image.convert("RGB").crop((left, 4, left + 32, 36)).resize((24, 24), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(made)).permute(2, 0, 1).float() / 255
        noise = torch.rand(3, 1, 1) + float(np.random.rand())
        return {"image": pixels + noise, "number": number, "name": os.path.basename(self.paths[number])}


class Processes(Dataset[Any]):
    """Says in which process a sample was made."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> int:
        time.sleep(0.002)
        return os.getpid()


class Odd(Dataset[Any]):
    """Gives what tensors can be: of no elements, not contiguous, of two bytes, of one number; and what is none."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> Any:
        return (
            torch.empty(0, 3),
            torch.arange(12).view(3, 4).t(),
            torch.full((5,), number, dtype=torch.bfloat16),
            torch.tensor(number % 2 == 0),
            np.full((2, 3), number, np.float32),
            {"text": f"sample {number}", "none": None, "complex": torch.tensor(1j * number)},
        )


def as_lists(samples: list[Any]) -> Any:
    return [list(column) for column in zip(*samples, strict=True)]


def shuffled(samples: list[Any]) -> Any:
    """Draws, as MixUp does."""
    random.shuffle(samples)
    return default_collate(samples)


def begin(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert info.id == worker < max(1, info.num_workers) + 100
    STARTED.append(worker)


class Started(Dataset[Any]):
    """Counts how often `begin` was called in a process."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> int:
        return len(STARTED)


def photos(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.rglob("*.jpg"))]
