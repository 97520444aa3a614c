"""torch's DataLoader over files, with torchvision's transforms on PIL images: what most people run."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.contenders import endlessly
from benchmarks.contenders.torchvision_transforms import transforms_of
from benchmarks.task import Task


class FolderDataset(Dataset[tuple[torch.Tensor, int]]):
    """The files of class folders, opened as torchvision's ImageFolder opens them."""

    def __init__(self, root: Path, transform: Any) -> None:
        classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.files = [(str(path), label) for label, name in enumerate(classes) for path in sorted((root / name).iterdir())]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[position]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), label


def open_loader(task: Task, **further: Any) -> Any:
    """torch's loader over the files, its worker processes staying between epochs; `further` arguments are passed on to it."""
    torch.manual_seed(task.seed)
    return DataLoader(
        FolderDataset(Path(task.data) / "folder", transforms_of()),
        batch_size=task.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=task.num_threads,
        persistent_workers=True,
        **further,
    )


def make(task: Task) -> Iterator[Sized]:
    """Batches for ever."""
    loader = open_loader(task)
    return endlessly(lambda: (images for images, _ in loader))
