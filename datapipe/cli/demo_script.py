"""Train a small network on a folder of photographs, one directory per class.

An ordinary training script, which does not know `datapipe diagnose`: the demo diagnoses it, first unchanged, with
torch's DataLoader on the files, then with --shards, where another loader replaces that.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate

SIZE, BATCH_SIZE = 160, 16
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photos(Dataset[tuple[Image.Image, int]]):
    """The photographs of a folder, cropped at random: a (3, SIZE, SIZE) float32 tensor and a label each."""

    def __init__(self, root: str) -> None:
        self.files = sorted(Path(root).glob("*/*.jp*g"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        file = self.files[index]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        side = int(min(image.size) * random.uniform(0.5, 1.0))
        left, top = random.randint(0, image.width - side), random.randint(0, image.height - side)
        image = image.crop((left, top, left + side, top + side)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return image, self.classes.index(file.parent.name)


def stacked(samples: list[tuple[Image.Image, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (n, 3, SIZE, SIZE) float32 images, normalised, and (n,) labels: a `collate_fn`."""
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image, _ in samples])).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std, default_collate([label for _, label in samples])


def network(num_classes: int) -> torch.nn.Module:
    """Return a small network, so that it does not compete with the loader for cores."""

    def block(num_in: int, num_out: int) -> torch.nn.Module:
        convolution = torch.nn.Conv2d(num_in, num_out, 3, stride=2, padding=1)
        return torch.nn.Sequential(convolution, torch.nn.GroupNorm(4, num_out), torch.nn.ReLU())

    head = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, num_classes))
    return torch.nn.Sequential(torch.nn.AvgPool2d(8), block(3, 16), block(16, 32), *head)


def loader_of_shards(path: str, workers: int) -> Any:
    """Return datapipe's loader of the shards, for the same batches."""
    import datapipe as dp
    from datapipe import transforms as T

    transform = [T.RandomResizedCrop(SIZE), T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    return dp.DataLoader(path, batch_size=BATCH_SIZE, shuffle=True, drop_last=True, num_workers=workers, transform=transform)


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos")
    parser.add_argument("--shards")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    photos = Photos(args.photos)
    loader: Any
    if args.shards:
        loader = loader_of_shards(args.shards, args.workers)
    else:
        loader = DataLoader(
            photos,
            batch_size=BATCH_SIZE,
            shuffle=True,
            drop_last=True,
            num_workers=args.workers,
            collate_fn=stacked,
            persistent_workers=args.workers > 0,
        )
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model = network(len(photos.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(args.epochs):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


if __name__ == "__main__":
    main()
