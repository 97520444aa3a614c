"""Ways to get rows of tokens onto the GPU: ours, nanoGPT's by hand, and one batch that stays there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import datapipe as dp

OURS, NANO, RESIDENT = "ours, packed", "by hand, as nanoGPT", "resident"
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # ids, labels and positions, (b, length) int64 on the device


def open_ours(file: Path, length: int, rows: int, device: str, **options: Any) -> dp.DataLoader:
    """Documents packed by best fit, shuffled. `options`: of `dp.Tokens`."""
    data = dp.Tokens(file, length, vocab_size=65_536, labels="shifted", **options)
    return dp.DataLoader(data, rows, shuffle=True, drop_last=True, seed=0, device=device)


def ours(file: Path, length: int, rows: int, device: str) -> Iterator[Batch]:
    for batch in itertools.chain.from_iterable(itertools.repeat(open_ours(file, length, rows, device))):
        yield batch["input_ids"], batch["labels"], batch["position_ids"]


def by_hand(file: Path, length: int, rows: int, device: str) -> Iterator[Batch]:
    """Random windows of the file, whatever documents they cut, copied from pinned memory: what nanoGPT's `get_batch` does."""
    positions = torch.arange(length, device=device).expand(rows, length)
    while True:
        ids = np.memmap(file, "<u2", "r")
        starts = torch.randint(len(ids) - length - 1, (rows,))
        windows = np.stack([ids[start : start + length + 1].astype(np.int64) for start in starts.tolist()])
        inputs, labels = torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(windows[:, 1:].copy())
        if device != "cpu":
            inputs = inputs.pin_memory().to(device, non_blocking=True)
            labels = labels.pin_memory().to(device, non_blocking=True)
        yield inputs, labels, positions


def resident(file: Path, length: int, rows: int, device: str) -> Iterator[Batch]:
    """One batch, for ever."""
    return itertools.repeat(next(ours(file, length, rows, device)))


FEEDS: dict[str, Callable[[Path, int, int, str], Iterator[Batch]]] = {OURS: ours, NANO: by_hand, RESIDENT: resident}
