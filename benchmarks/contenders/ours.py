"""datapipe's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import torch

import datapipe
from benchmarks.contenders import endlessly
from benchmarks.task import CROP, Task


def make(
    task: Task, *, part: str = "shards", dtype: str = "float32", device: str = "cpu", backend: str = "auto"
) -> Iterator[Sized]:
    """Shuffled in full; batches are channels_last."""
    loader = open_loader(task, part=part, dtype=dtype, device=device, backend=backend)
    return endlessly(lambda: (images for images, _ in loader))


def open_loader(
    task: Task, *, part: str, dtype: str, device: str, backend: Any, cut: Sequence[Any] = (), **options: Any
) -> datapipe.DataLoader:
    """The loader, of one epoch at a time. `cut`: in place of RandomResizedCrop. `options`: further arguments, or others."""
    transform: list[Any] = [*(cut or [datapipe.RandomResizedCrop(CROP)]), datapipe.RandomHorizontalFlip()]
    if dtype == "float32":
        transform += [
            datapipe.ToDtype(torch.float32, scale=True),
            datapipe.Normalize(datapipe.IMAGENET_MEAN, datapipe.IMAGENET_STD),
        ]
    return datapipe.DataLoader(
        Path(task.data) / part,
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=task.num_threads,
        transform=transform,
        device=device,
        backend=backend,
        seed=task.seed,
        **{"drop_last": True, **options},
    )
