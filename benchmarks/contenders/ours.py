"""datapipe's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import torch

import datapipe
from benchmarks.contenders import endlessly
from benchmarks.task import CROP, Task
from datapipe import transforms as T


def make(
    task: Task, *, part: str = "shards", dtype: str = "float32", device: str = "cpu", backend: str = "auto"
) -> Iterator[Sized]:
    """Shuffled in full; batches are channels_last."""
    loader = open_loader(task, part=part, dtype=dtype, device=device, backend=backend)
    return endlessly(lambda: (images for images, _ in loader))


def open_loader(
    task: Task,
    *,
    part: str,
    dtype: str,
    device: str,
    backend: Any,
    cut: Sequence[Any] = (),
    cache: str | None = None,
    **options: Any,
) -> datapipe.DataLoader:
    """The loader, of one epoch at a time. `cut`: in place of RandomResizedCrop. `options`: further arguments, or others."""
    transform: list[Any] = [*(cut or [T.RandomResizedCrop(CROP)]), T.RandomHorizontalFlip()]
    if dtype == "float32":
        transform += [
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD),
        ]
    return datapipe.DataLoader(
        datapipe.Images(Path(task.data) / part, cache=cache),
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=task.num_threads,
        transform=transform,
        device=device,
        backend=backend,
        seed=task.seed,
        **{"drop_last": True, **options},
    )
