"""Measure the loader of images on training's usual recipe for `datapipe bench`: its rate, where time goes, torch's beside it."""

from __future__ import annotations

import argparse
import functools
import io
import math
import random
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.utils.data
from PIL import Image

from datapipe.core.observe import StageTotals
from datapipe.core.printable import counted
from datapipe.fetch.files import Files, open_files
from datapipe.index.sample_index import SampleIndex
from datapipe.kernel.calibration import in_turns, rate_of
from datapipe.kernel.options import default_num_workers
from datapipe.kernel.processes import await_launcher
from datapipe.kinds.images.data import Images
from datapipe.kinds.images.process_workers import IMPORTS
from datapipe.kinds.loader import DataLoader
from datapipe.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToDtype,
)


def loader(index: SampleIndex, args: argparse.Namespace) -> DataLoader:
    """Return datapipe's loader, as the options say."""
    crop = [RandomResizedCrop(args.size), RandomHorizontalFlip()]
    held = [spec.name for spec in index.manifest.fields]
    return DataLoader(
        Images(index, fields=[name for name in ("image", "label") if name == "image" or name in held]),
        batch_size=min(args.batch_size, len(index)),
        shuffle=True,
        seed=0,
        drop_last=True,
        num_workers=default_num_workers() if args.num_workers is None else args.num_workers,
        transform=[*crop, ToDtype(torch.float32, scale=True), Normalize(IMAGENET_MEAN, IMAGENET_STD)],
        device=args.device,
        backend=args.backend,
        workers=args.workers,
    )


def measure(index: SampleIndex, args: argparse.Namespace) -> dict[str, Any]:
    """Return images per second of each loader, by round, and per-image stage times of datapipe's."""
    ours = loader(index, args)
    num_workers, batch_size = ours.num_workers, min(args.batch_size, len(index))
    loaders: dict[str, Iterable[Any]] = {"datapipe": ours}
    if args.against == "torch":
        loaders["torch"] = torch_loader(index, size=args.size, batch_size=batch_size, num_workers=num_workers)
    if ours.choice.dali is None:
        await_launcher(IMPORTS, num_workers)
    totals = StageTotals()
    ours.observe(totals)
    contenders = {name: functools.partial(rate_of, loader, args.images, device=ours.device) for name, loader in loaders.items()}
    rates = in_turns(contenders, rounds=args.rounds)
    stages = {name: total / totals.num_samples["read"] / 1e6 for name, total in totals.duration_ns.items()}
    return {
        "samples": len(index),
        "batch_size": batch_size,
        "num_workers": num_workers,
        "device": str(ours.device),
        "backend": ours.choice.backend,
        "reason": ours.choice.reason,
        "images_per_s": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "rounds": {name: [round(value, 1) for value in values] for name, values in rates.items()},
        "ms_per_image": {name: round(value, 4) for name, value in stages.items()},
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text for people."""
    rates = result["images_per_s"]
    lines = [
        f"{counted(result['samples'], 'sample')}, batches of {result['batch_size']}, {counted(result['num_workers'], 'worker')}, "
        f"on {result['device']} by {result['backend']} ({result['reason']})"
    ]
    for name, rate in rates.items():
        rounds = result["rounds"][name]
        lines.append(f"  {name:<9}{rate:>10,.0f} images/s   (rounds {min(rounds):,.0f} to {max(rounds):,.0f})")
    if "torch" in rates:
        lines.append(f"  ratio    {rates['datapipe'] / rates['torch']:>10.2f}")
    shares = ", ".join(f"{name} {value:.3f}" for name, value in result["ms_per_image"].items() if name != "wait")
    lines.append(f"  thread time per image, ms: {shares}")
    return "\n".join(lines)


# -- torch's loader over Pillow --------------------------------------------------------------------------


class PillowDataset(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """A dataset that reads, decodes, crops and flips sample by sample, into (3, size, size) float32, normalised, and a label.

    That is torchvision's ImageNet recipe on PIL images, written out here so that a comparison needs no torchvision.
    """

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
    """Return the loader that most training scripts start with; its worker processes persist over epochs."""
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
