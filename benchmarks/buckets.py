"""Buckets of shapes: planning a million images, what is padded or dropped, and batches against a bucket sampler by hand.

    python -m benchmarks.buckets              # 4 minutes
    python -m benchmarks.buckets --dry-run    # little of everything: does it run?

By hand is what scripts that train diffusion models do: a Dataset that opens a photograph with Pillow, turns it as its EXIF says,
resizes it (bicubic) to cover its bucket and cuts the middle, in torch's DataLoader with a batch sampler of buckets, in as many
worker processes as the loader here has threads. Batches are float32 in both.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

import datapipe as dp
from benchmarks import harness
from benchmarks.ratios import ratio_of
from datapipe.kinds.images import buckets as plans
from datapipe.order.plan import Tail
from datapipe.testing.synthetic_images import make_image_folder

BUCKETS = dp.Buckets(area=512**2, step=64, ratio=2.0)
GLOBAL_BATCHES = (64, 512, 2048)
_BATCH, _THREADS = 16, 2
PLANNED_S, OPENED_S, PADDED = 2.0, 0.05, 0.01  # aims: at most


def main() -> None:
    arguments = _parse()
    num = 20_000 if arguments.dry_run else 1_000_000
    planning = _planning(num, 1 if arguments.dry_run else arguments.rounds)
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        folder = _photographs(Path(name) / "photos", 48 if arguments.dry_run else 1200)
        rates = _rates(folder, arguments.rounds)
    result = {
        "settings": {"num_planned": num, "batch_size": _BATCH, "num_threads": _THREADS, "num_rounds": arguments.rounds},
        "planning": planning,
        "rates": {one: round(statistics.median(values), 1) for one, values in rates.items()},
        "ratio": dataclasses.asdict(ratio_of(rates["datapipe"], rates["by hand"])),
    }
    if not arguments.dry_run:
        harness.save("buckets", "benchmarks.buckets", result, results=arguments.results)
    for title, value in result.items():
        print(f"{title:<10} {value}")


def _planning(num: int, num_rounds: int) -> dict[str, Any]:
    """Return how long the plan of so many images of many shapes takes, to make and to open, and what it pads and drops."""
    rng = np.random.default_rng(0)
    ratios, areas = np.exp(rng.normal(0, 0.35, num)), rng.uniform(0.3, 24, num) * 1e6
    sizes = np.stack([np.sqrt(areas * ratios), np.sqrt(areas / ratios)], axis=1).astype(np.int32)
    buckets, planned, opened = dp.Buckets(area=1024**2, step=64, ratio=2.0), [], []
    with tempfile.TemporaryDirectory() as name:
        for _ in range(num_rounds):
            began = time.perf_counter()
            plans._keep(Path(name), plans._planned(sizes, buckets))
            planned.append(time.perf_counter() - began)
            began = time.perf_counter()
            plan = plans._kept(Path(name), buckets)
            opened.append(time.perf_counter() - began)
        assert plan is not None
        orders = {
            size: [plan.order(0, batch_size=size, num_ranks=1, tail=tail, shuffle=True) for tail in (Tail.PAD, Tail.DROP)]
            for size in GLOBAL_BATCHES
        }
    return {
        "shapes": len(buckets.shapes),
        "planned_s": round(statistics.median(planned), 3),
        "opened_s": round(statistics.median(opened), 4),
        "padded": {str(size): round(padded.num_filling / num, 5) for size, (padded, _) in orders.items()},
        "dropped": {str(size): round(dropping.num_dropped / num, 5) for size, (_, dropping) in orders.items()},
    }


def _photographs(root: Path, num: int) -> Path:
    """Write photographs, cut to many shapes, some of them turned by a camera."""
    source = make_image_folder(root.with_name("whole"), num_images=max(16, num // 8), num_classes=1)
    paths, rng = sorted(source.glob("*/*")), np.random.default_rng(0)
    root.mkdir()
    for number in range(num):
        ratio = math.exp(rng.normal(0, 0.3))
        height, width = (int(min(900.0, 750 * side)) for side in (math.sqrt(ratio), 1 / math.sqrt(ratio)))
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 8 == 0 else 1
        with Image.open(paths[number % len(paths)]) as image:
            large = image.convert("RGB").resize((900, 900), Image.Resampling.BICUBIC)
            large.crop((0, 0, width, height)).save(root / f"{number:05d}.jpg", quality=90, exif=exif)
    return root


class ByHand(torch.utils.data.Dataset[torch.Tensor]):
    """Photographs in the shape of their bucket, by Pillow."""

    def __init__(self, paths: list[Path], shapes: list[tuple[int, int]]) -> None:
        self.paths, self.shapes = paths, shapes

    def __getitem__(self, place: int) -> torch.Tensor:
        height, width = self.shapes[place]
        with Image.open(self.paths[place]) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
        made = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(made)).permute(2, 0, 1).float() / 255

    def __len__(self) -> int:
        return len(self.paths)


def _shape_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        is_turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
        size = (image.width, image.height) if is_turned else (image.height, image.width)
    return min(BUCKETS.shapes, key=lambda shape: abs(math.log(shape[0] / shape[1]) - math.log(size[0] / size[1])))


def _by_hand(folder: Path) -> Iterator[torch.Tensor]:
    paths = sorted(folder.glob("*.jpg"))
    shapes, rng = list(map(_shape_of, paths)), random.Random(0)
    of_bucket: dict[tuple[int, int], list[int]] = {}
    for place in rng.sample(range(len(paths)), len(paths)):
        of_bucket.setdefault(shapes[place], []).append(place)
    steps = [places[first : first + _BATCH] for places in of_bucket.values() for first in range(0, len(places), _BATCH)]
    rng.shuffle(steps)
    loader = torch.utils.data.DataLoader(ByHand(paths, shapes), batch_sampler=steps, num_workers=_THREADS)
    return iter(loader)


def _ours(folder: Path) -> Iterator[torch.Tensor]:
    data = dp.Images(folder, buckets=BUCKETS, fields=["image"], form=dp.Form("image-folder", class_from="none"))
    chain = [dp.transforms.ToDtype(torch.float32, scale=True)]
    loader = dp.DataLoader(data, _BATCH, shuffle=True, seed=0, num_workers=_THREADS, transform=chain)
    return (images for (images,) in loader)


def _rates(folder: Path, num_rounds: int) -> dict[str, list[float]]:
    """Return the images a second of whole epochs, in turns; the sizes of the images are known before."""
    contenders = {"datapipe": _ours, "by hand": _by_hand}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():
        next(contender(folder))
    for _ in range(num_rounds):
        for name, contender in contenders.items():
            batches = contender(folder)
            next(batches)  # begins the workers
            began, num = time.perf_counter(), 0
            for images in batches:
                num += len(images)
            rates[name].append(num / (time.perf_counter() - began))
    return rates


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.buckets", description="Buckets of shapes.")
    return harness.run_arguments(parser, rounds=5, scratch="photographs of 200 MB")


if __name__ == "__main__":
    main()
