"""Where the time of one image goes, step by step, in one thread.

    python -m benchmarks.stages --set 256

Each step is run alone over the same samples and the same crops, so its figure is the work itself; what the
loader, on one thread, takes beyond their sum is planning, Python and the cost of sharing the caches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import datapipe as dp
from benchmarks import harness
from benchmarks.data import DEFAULT_DATA, ImageSet, Workshop, describe, prepare, warm
from benchmarks.task import CROP
from datapipe import transforms as T
from datapipe.codecs.decode import open_decoder
from datapipe.codecs.probe import probe
from datapipe.fetch.local import LocalFiles
from datapipe.opening.samples import open_index
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import RowCut, cut, row_cuts

_BLOCK = 8


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages")
    parser.add_argument("--set", choices=("photos", "256"), required=True)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    root = prepare(
        Workshop(arguments.data), ImageSet(arguments.set, num_files=arguments.files, copies=arguments.copies), ("shards",)
    )
    warm([root / "shards"])
    rounds = [measure(root / "shards", arguments.images) for _ in range(arguments.rounds)]
    median = {name: round(statistics.median(one[name] for one in rounds), 1) for name in rounds[0]}
    result: dict[str, Any] = {
        "dataset": describe(root),
        "settings": {"num_images": arguments.images, "num_rounds": arguments.rounds, "num_threads": 1},
        "median_us_per_image": median,
        "rounds": [{name: round(value, 1) for name, value in one.items()} for one in rounds],
    }
    harness.save(f"stages-{arguments.set}", "benchmarks.stages", result, results=arguments.results)
    for name, value in median.items():
        print(f"{name:<28} {value:8.1f} us")


def measure(shards: Path, num_images: int) -> dict[str, float]:
    """Microseconds per image of each step, over the first images of a shuffled epoch."""
    index, files, decoder = open_index(shards), LocalFiles(), open_decoder()
    recipe = Recipe.of(transforms_of_task())
    ids = index.ids(np.random.default_rng(0).permutation(len(index))[:num_images].astype(np.int64))
    entries = index.look_up(ids, "image")
    data: list[bytes] = [b""] * num_images
    headers: list[Any] = [None] * num_images

    def read(row: int) -> None:
        data[row] = files.read(entries.extents, row)

    def parse(row: int) -> None:
        headers[row] = probe(data[row])

    took = {"read and checksum": _each(read, num_images), "header": _each(parse, num_images)}
    sizes = np.array([(header.height, header.width) for header in headers], np.int64)
    (cuts,) = recipe.draw_cuts(Draws(0, 0, ids), sizes)
    rows = row_cuts(cuts)
    unflipped = [RowCut(row.region, row.size, row.window, [False, False], row.fill) for row in rows]
    out = np.empty((_BLOCK, CROP, CROP, 3), np.uint8)
    pixels: list[Any] = [None]

    def decode(row: int) -> None:
        pixels[0] = decoder(data[row], headers[row], rows[row].region)

    def decode_and_resize(row: int) -> None:
        decode(row)
        cut(pixels[0], unflipped[row], out[row % _BLOCK])

    def decode_and_cut(row: int) -> None:
        decode(row)
        cut(pixels[0], rows[row], out[row % _BLOCK])

    took["decode the region"] = _each(decode, num_images)
    resized = _each(decode_and_resize, num_images)
    took["resize"] = resized - took["decode the region"]
    took["flip (half of them)"] = _each(decode_and_cut, num_images) - resized
    took["to float32"] = _convert(recipe, num_images)
    loader = dp.DataLoader(
        dp.Images(index),
        batch_size=128,
        shuffle=True,
        seed=0,
        num_workers=0,
        transform=transforms_of_task(),
        drop_last=True,
        device="cpu",
    )
    took["the loader, all in all"] = _loader(loader, num_images)
    return took


def transforms_of_task() -> list[Any]:
    """Return the transforms that all contenders apply."""
    crop = [T.RandomResizedCrop(CROP), T.RandomHorizontalFlip()]
    return [*crop, T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]


def _each(step: Callable[[int], object], num_images: int) -> float:
    started = time.perf_counter()
    for row in range(num_images):
        step(row)
    return (time.perf_counter() - started) / num_images * 1e6


def _convert(recipe: Recipe, num_images: int) -> float:
    """From a block of uint8 into the rows of batches, three of them in turn as in the loader's pool."""
    slabs = torch.zeros((3 * 128, CROP, CROP, 3), dtype=torch.float32)
    block = torch.zeros((_BLOCK, CROP, CROP, 3), dtype=torch.uint8)
    draws = Draws(0, 0, np.arange(_BLOCK))
    started = time.perf_counter()
    for first in range(0, num_images, _BLOCK):
        place = first % (3 * 128)
        recipe.run_pixels(block, draws, slabs[place : place + _BLOCK])
    return (time.perf_counter() - started) / num_images * 1e6


def _loader(loader: dp.DataLoader, num_images: int) -> float:
    """Whole batches after two that fill the pool."""
    batches = iter(loader)
    next(batches), next(batches)
    started, done = time.perf_counter(), 0
    while done < num_images:
        done += len(next(batches)[0])
    return (time.perf_counter() - started) / done * 1e6


if __name__ == "__main__":
    main()
