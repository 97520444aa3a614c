"""Build the loader that most training scripts start with: torch's DataLoader over Pillow, over the same samples.

It does the same work as torchvision's ImageNet recipe on PIL images (crop, BILINEAR resize, flip, tensor,
normalise), written out here so that a comparison needs no torchvision.
"""

from __future__ import annotations

import io
import math
import random
from typing import Any

import numpy as np
import torch
import torch.utils.data
from PIL import Image

from datapipe.fetch.files import Files, open_files
from datapipe.index.sample_index import SampleIndex
from datapipe.transforms import IMAGENET_MEAN, IMAGENET_STD


class PillowDataset(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """A dataset that reads, decodes, crops and flips sample by sample, into (3, size, size) float32, normalised, and a label."""

    def __init__(self, index: SampleIndex, *, size: int) -> None:
        self._index, self._size = index, size
        self._files: Files | None = None
        self._mean = torch.tensor(IMAGENET_MEAN).view(3, 1, 1)
        self._std = torch.tensor(IMAGENET_STD).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
        if self._files is None:
            self._files = open_files(self._index)
        entries = self._index.look_up(self._index.ids(np.array([position])), "image")
        data = self._files.read(entries.extents, 0)
        image = _open(data)
        left, top, width, height = _random_box(*image.size)
        image = image.crop((left, top, left + width, top + height)).resize((self._size, self._size), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        return pixels.sub_(self._mean).div_(self._std), int(entries.labels[0])


def torch_loader(index: SampleIndex, *, size: int, batch_size: int, num_workers: int) -> torch.utils.data.DataLoader[Any]:
    """Return torch's DataLoader with worker processes that persist over epochs."""
    return torch.utils.data.DataLoader(
        PillowDataset(index, size=size),
        batch_size=batch_size,
        shuffle=True,
        num_workers=num_workers,
        drop_last=True,
        persistent_workers=num_workers > 0,
    )


def _open(data: bytes) -> Image.Image:
    if data[:6] == b"\x93NUMPY":
        return Image.fromarray(np.load(io.BytesIO(data)))
    return Image.open(io.BytesIO(data)).convert("RGB")


def _random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Return (left, top, width, height) as torchvision's RandomResizedCrop.get_params does."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w, h = (width, min(height, round(width / (3 / 4)))) if width < height else (min(width, round(height * 4 / 3)), height)
    return (width - w) // 2, (height - h) // 2, w, h
