"""Datasets as people write them, in torch's DataLoader as it is and taken over by `datapipe.from_torch`.

Kinds: "path" opens files and has a Compose; "functional" draws by Python's `random`; "bytes" holds encoded bytes; "timm" is
timm's ImageDataset with its training transform; "random-collate" has a `collate_fn` that draws random numbers; the others are
`own_recipes`.
"""

from __future__ import annotations

import importlib
import io
import random
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

from benchmarks.contenders import endlessly
from benchmarks.contenders.from_torch import loader_over
from benchmarks.contenders.own_recipes import mixed, recipe_of
from benchmarks.contenders.torchvision_transforms import import_torchvision, transforms_of
from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD, Task


def make(task: Task, *, kind: str, taken_over: bool) -> Iterator[Sized]:
    """What the user's script has; with `taken_over`, one line changed."""
    torch.manual_seed(task.seed)
    import_torchvision()
    root = Path(task.data) / "folder"
    data = _timm(root) if kind == "timm" else OwnDataset(root, kind)
    loader = loader_over(data, task, taken_over=taken_over, collate_fn=mixed if kind == "random-collate" else None)
    return endlessly(lambda: (images[0] if isinstance(images, list) else images for images, _ in loader))


_USUAL = ("path", "bytes", "random-collate")  # kinds whose transform is the usual recipe


class OwnDataset(Dataset[tuple[Any, int]]):
    """A list of files, and what is made of an image."""

    def __init__(self, root: Path, kind: str) -> None:
        classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.files = [(str(path), label) for label, name in enumerate(classes) for path in sorted((root / name).iterdir())]
        self.kind = kind
        self.encoded = [Path(path).read_bytes() for path, _ in self.files[:3000]] if kind == "bytes" else []
        if kind == "functional":
            self.transform: Any = functional
        else:
            self.transform = transforms_of() if kind in _USUAL else recipe_of(kind)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> tuple[Any, int]:
        path, label = self.files[position]
        if self.encoded:
            image = Image.open(io.BytesIO(self.encoded[position % len(self.encoded)])).convert("RGB")
        else:
            image = Image.open(path).convert("RGB")
        return self.transform(image), label


def functional(image: Image.Image) -> Any:
    """A crop of random place and size, resized and flipped, by functions."""
    functions: Any = importlib.import_module("torchvision.transforms.functional")
    width, height = image.size
    side = int(min(width, height) * random.uniform(0.4, 1.0))
    top, left = random.randint(0, height - side), random.randint(0, width - side)
    image = functions.resized_crop(image, top, left, side, side, [CROP, CROP])
    if random.random() < 0.5:
        image = functions.hflip(image)
    return functions.normalize(functions.to_tensor(image), list(IMAGENET_MEAN), list(IMAGENET_STD))


def _timm(root: Path) -> Any:
    data: Any = importlib.import_module("timm.data")
    return data.ImageDataset(str(root), transform=data.create_transform(CROP, is_training=True))
