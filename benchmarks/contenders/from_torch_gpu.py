"""torch's DataLoader over a Dataset of one's own, taken over by `datapipe.from_torch`, its batches on the GPU.

The files and transforms of `torch_gpu`, which runs as it is what is taken over here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch

import datapipe
from benchmarks.contenders.torch_dataloader import open_loader
from benchmarks.task import Task


def make(task: Task, *, device: str = "cuda", backend: str = "dali") -> Iterator[Sized]:
    """Batches for ever. Raises RuntimeError if DALI is to make the images and does not."""
    taken = open_loader(task, prefetch_factor=4, pin_memory=device == "cuda")
    loader: Any = datapipe.from_torch(taken, device=device, backend=backend)
    is_seen = backend != "dali"
    while True:
        for images, _ in loader:
            if not is_seen and not any(", by DALI" in line for line in loader.explanation):
                raise RuntimeError("DALI was asked for, and torch's workers made the images")
            is_seen = True
            yield images.contiguous(memory_format=torch.channels_last)
