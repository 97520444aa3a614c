"""torch's DataLoader over torchvision's ImageFolder, taken over by `datapipe.from_torch`, and as it is.

Chains: "imagenet" is torchvision's training recipe; "own" has a function of the user's in it, which nobody can see through.
Datasets: "ImageFolder" is torchvision's; "own" opens the same files by code of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import datapipe
from benchmarks.contenders import endlessly
from benchmarks.contenders.torch_dataloader import FolderDataset
from benchmarks.contenders.torchvision_transforms import import_torchvision, transforms_of
from benchmarks.task import Task


def make(task: Task, *, taken_over: bool = True, chain: str = "imagenet", dataset: str = "ImageFolder") -> Iterator[Sized]:
    """What the user's script has; with `taken_over`, one line changed."""
    torch.manual_seed(task.seed)
    import_torchvision()
    transform = transforms_of()
    if chain == "own":
        transform.transforms.insert(2, watermark)
    root = Path(task.data) / "folder"
    data: Any
    if dataset == "own":
        data = FolderDataset(root, transform)
    else:
        data = importlib.import_module("torchvision.datasets").ImageFolder(root, transform)
    loader = loader_over(data, task, taken_over=taken_over)
    return endlessly(lambda: (images for images, _ in loader))


def loader_over(data: Any, task: Task, *, taken_over: bool, collate_fn: Callable[[Any], Any] | None = None) -> Any:
    """torch's loader as scripts make it; with `taken_over`, one line more."""
    loader: Any = DataLoader(
        data,
        batch_size=task.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=task.num_threads,
        persistent_workers=True,
        collate_fn=collate_fn,
    )
    return datapipe.from_torch(loader, device="cpu") if taken_over else loader


def watermark(image: Any) -> Any:
    """Something of one's own that is done to a PIL image."""
    image.putpixel((0, 0), (255, 0, 255))
    return image
