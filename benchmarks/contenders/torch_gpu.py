"""torch's DataLoader with PIL, its batches pinned and copied to the GPU: what most people run."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch

from benchmarks.contenders import endlessly
from benchmarks.contenders.torch_dataloader import open_loader
from benchmarks.task import Task


def make(task: Task, *, device: str = "cuda") -> Iterator[Sized]:
    """Worker processes that stay between epochs, pinned memory, copies that do not wait; channels_last as the model wants it."""
    loader = open_loader(task, prefetch_factor=4, pin_memory=device == "cuda")

    def epoch() -> Iterator[torch.Tensor]:
        for images, _ in loader:
            yield images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)

    return endlessly(epoch)
