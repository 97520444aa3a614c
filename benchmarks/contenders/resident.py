"""What no loader can pass: batches that lie on the device before the clock starts."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch

from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD, Task

_CACHED = 8192  # images


def make(task: Task, *, kind: str, device: str = "cuda", num_cached: int = _CACHED) -> Iterator[Sized]:
    """ "synthetic": one batch of noise, over and over. "cached": uint8 images drawn from a resident set and normalised."""
    generator = torch.Generator(device).manual_seed(task.seed)
    shape = (task.batch_size, 3, CROP, CROP)
    if kind == "synthetic":
        batch = torch.randn(shape, device=device, generator=generator).contiguous(memory_format=torch.channels_last)
        while True:
            yield batch
    images = torch.randint(0, 256, (num_cached, CROP, CROP, 3), dtype=torch.uint8, device=device, generator=generator)
    mean = torch.tensor(IMAGENET_MEAN, device=device).view(1, 1, 1, 3) * 255
    scale = 1 / (torch.tensor(IMAGENET_STD, device=device).view(1, 1, 1, 3) * 255)
    while True:
        chosen = torch.randint(0, num_cached, (task.batch_size,), device=device, generator=generator)
        yield ((images[chosen].float() - mean) * scale).permute(0, 3, 1, 2)
