"""Datasets with planted faults, in a module of their own so that spawned workers can import them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
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
