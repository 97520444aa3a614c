"""Datasets as people write them, for torch's DataLoader.

Kinds: "path" opens files and has a Compose; "functional" draws by Python's `random`; "bytes" holds encoded bytes; "timm" is
timm's ImageDataset with its training transform; "random-collate" has a `collate_fn` that draws random numbers; the others are
`own_recipes`.
"""

from __future__ import annotations

import importlib
import io
import random
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset

from benchmarks.contenders.own_recipes import recipe_of
from benchmarks.contenders.torchvision_transforms import transforms_of
from benchmarks.task import CROP, IMAGENET_MEAN, IMAGENET_STD


def own_dataset(root: Path, kind: str, num: int) -> Any:
    """Return a Dataset of a kind, of the first images of a folder."""
    data: Any
    if kind == "timm":
        library: Any = importlib.import_module("timm.data")
        data = library.ImageDataset(str(root), transform=library.create_transform(CROP, is_training=True))
        data.reader.samples = data.reader.samples[:num]
    else:
        data = OwnDataset(root, kind, transform_of(kind))
        data.files = data.files[:num]
    return data


def transform_of(kind: str) -> Any:
    """Return what a kind makes of an image."""
    if kind == "functional":
        return functional
    return transforms_of() if kind in _USUAL else recipe_of(kind)


_USUAL = ("path", "bytes", "random-collate")  # kinds whose transform is the usual recipe


class OwnDataset(Dataset[tuple[Any, int]]):
    """A list of files, and what is made of an image."""

    def __init__(self, root: Path, kind: str, transform: Any) -> None:
        classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.files = [(str(path), label) for label, name in enumerate(classes) for path in sorted((root / name).iterdir())]
        self.kind = kind
        self.encoded = [Path(path).read_bytes() for path, _ in self.files[:3000]] if kind == "bytes" else []
        self.transform = transform

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
    functions: Any = sys.modules["torchvision.transforms.functional"]
    width, height = image.size
    side = int(min(width, height) * random.uniform(0.4, 1.0))
    top, left = random.randint(0, height - side), random.randint(0, width - side)
    image = functions.resized_crop(image, top, left, side, side, [CROP, CROP])
    if random.random() < 0.5:
        image = functions.hflip(image)
    return functions.normalize(functions.to_tensor(image), list(IMAGENET_MEAN), list(IMAGENET_STD))
