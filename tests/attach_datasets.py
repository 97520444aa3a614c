"""Datasets with planted faults, in a module of their own so that spawned workers can import them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

NUM_SAMPLES = 48
STALL_S = 0.004  # per sample


class Add:
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.value


class Slow:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(STALL_S)
        return x


class Chain:
    """What every library calls Compose."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)
        self.num_calls = 0

    def __call__(self, x: Any) -> Any:
        self.num_calls += 1
        for transform in self.transforms:
            x = transform(x)
        return x


class Numbers(Dataset[Any]):
    """Sample i is two float32 numbers i, transformed; reading it takes `stall_s`, on worker `only` alone if given."""

    def __init__(self, transform: Any = None, *, stall_s: float = 0.0, only: int | None = None, num: int = NUM_SAMPLES) -> None:
        self.transform = transform
        self.stall_s, self.only, self.num = stall_s, only, num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if self.stall_s and (self.only is None or (info is not None and info.id == self.only)):
            time.sleep(self.stall_s)
        x = torch.full((2,), float(index))
        return x if self.transform is None else self.transform(x)


class Busy(Numbers):
    """Decodes for `STALL_S` of CPU time."""

    def __getitem__(self, index: int) -> Any:
        start = time.thread_time()
        while time.thread_time() - start < STALL_S:
            pass
        return super().__getitem__(index)


class Spin:
    """Computes for a millisecond of CPU time."""

    def __call__(self, x: Any) -> Any:
        start = time.thread_time()
        while time.thread_time() - start < 0.001:
            pass
        return x


def smoothed(pixels: Any) -> Any:
    """Many short operations, none of which is worth a name."""
    left, right, above, below = pixels[:, :-1], pixels[:, 1:], pixels[:-1], pixels[1:]
    for _ in range(3):
        pixels[:, :-1] = pixels[:, :-1] * 0.5 + right * 0.5
        pixels[:-1] = pixels[:-1] * 0.5 + below * 0.5
        pixels[:, 1:] = pixels[:, 1:] * 0.5 + left * 0.5
        pixels[1:] = pixels[1:] * 0.5 + above * 0.5
    return pixels


class Pictures(Dataset[Any]):
    """A JPEG that is read, enlarged and smoothed by code of its own, and then transformed."""

    def __init__(self, folder: Path, *, num: int) -> None:
        self.path, self.num, self.transform = folder / "one.jpg", num, Chain(Spin())
        Image.effect_noise((256, 256), 50).save(self.path)

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.path) as file:
            image = file.convert("RGB")
        enlarged = image.resize((1024, 768), Image.Resampling.LANCZOS)
        return self.transform(torch.from_numpy(smoothed(np.array(enlarged.resize((256, 256)), np.float32))))


_BLOCK = bytes(2_000_000)


class Holding(Numbers):
    """Computes for about as long with Python's lock as without it."""

    def __getitem__(self, index: int) -> Any:
        sum(range(60_000))
        hashlib.sha256(_BLOCK)
        return super().__getitem__(index)


class Stream(IterableDataset[Any]):
    def __init__(self, stall_s: float = 0.0) -> None:
        self.stall_s = stall_s

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, num = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(worker, NUM_SAMPLES, num):
            time.sleep(self.stall_s)
            yield torch.full((2,), float(index))


class Blobs(Dataset[bytes]):
    """Samples that are no tensors: they go through the queue byte by byte."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> bytes:
        return bytes(self.nbytes)


class Failing(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise KeyError("sample 5 is broken")
        return super().__getitem__(index)


def slow_collate(samples: list[Any]) -> Any:
    time.sleep(STALL_S * len(samples))
    return default_collate(samples)


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def fail_in_transform(x: Any) -> Any:
    raise ZeroDivisionError("planted")
