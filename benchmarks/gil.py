"""How long the loader can hold Python's global lock per image: what bounds it on many cores.

    python -m benchmarks.gil

An upper bound, because the lock itself cannot be watched without disturbing it: the loader works on
images so small (16 x 16 pixels, cut to 8 x 8) that what runs outside the lock, decoding, resizing and
arithmetic, takes next to no time. What one thread then needs per image is Python's own work and the fixed
cost of each call; no more than that can be under the lock, and the calls release it for a part of that.
`calls_us` is that fixed cost for the two largest calls, decode and resize, measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.environment import ROOT

_NUM_IMAGES = 4096
_SIDE, _CROP = 16, 8  # pixels


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gil")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=_NUM_IMAGES)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(measure(arguments.once)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        shards = make_shards(Path(scratch), arguments.images)
        rounds = [_run(shards) for _ in range(arguments.rounds)]
    names = ("at_most_us_per_image", "plan_us", "read_us", "decode_us", "augment_us", "calls_us")
    median = {name: round(statistics.median(one[name] for one in rounds), 2) for name in names}
    result: dict[str, Any] = {
        "settings": {
            "num_images": arguments.images,
            "side": _SIDE,
            "crop": _CROP,
            "num_threads": 1,
            "num_rounds": arguments.rounds,
        },
        "median": median,
        "rounds": [{name: round(one[name], 2) for name in names} for one in rounds],
    }
    harness.save("gil", "benchmarks.gil", result, results=arguments.results)
    print(f"at most {median['at_most_us_per_image']:.1f} us per image")


def make_shards(directory: Path, num_images: int) -> Path:
    """Shards of tiny JPEGs of noise."""
    import numpy as np
    from PIL import Image

    from converters import ConvertOptions, convert

    folder, shards = directory / "folder" / "noise", directory / "shards"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (num_images, _SIDE, _SIDE, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number:05d}.jpg")
    convert(ConvertOptions(folder.parent, shards))
    return shards


def _run(shards: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.gil", "--once", str(shards)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def measure(shards: Path) -> dict[str, float]:
    """Microseconds per image, in the caller's thread, of the second epoch."""
    import torch

    import datapipe as dp
    from datapipe.cli.bench import StageTotals

    recipe = [dp.RandomResizedCrop(_CROP), dp.RandomHorizontalFlip(), dp.ToDtype(torch.float32, scale=True)]
    recipe.append(dp.Normalize(dp.IMAGENET_MEAN, dp.IMAGENET_STD))
    loader = dp.DataLoader(shards, batch_size=256, shuffle=True, seed=0, num_workers=0, transform=recipe, device="cpu")
    totals = StageTotals()
    loader.observe(totals)
    for _ in loader:
        pass
    totals.duration_ns.clear()
    started = time.perf_counter()
    num_images = sum(len(images) for images, _ in loader)
    wall_s = time.perf_counter() - started
    stages = {f"{name}_us": totals.duration_ns[name] / num_images / 1e3 for name in ("plan", "read", "decode", "augment")}
    return {"at_most_us_per_image": wall_s / num_images * 1e6, **stages, "calls_us": _calls_us(loader)}


def _calls_us(loader: Any) -> float:
    """What decoding and resizing one such image takes, called alone."""
    import torch
    from torch.nn.functional import interpolate

    from datapipe.decode import open_decoder
    from datapipe.fetch.local import LocalFiles
    from datapipe.probe import probe

    index = loader.dataset.index
    entries = index.look_up(index.ids(torch.zeros(1, dtype=torch.int64).numpy()), "image")
    data = LocalFiles().read(entries.extents, 0)
    header, decoder = probe(data), open_decoder()
    image = torch.zeros((1, _SIDE, _SIDE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    size = (_CROP, _CROP)
    decode_us = _best_us(lambda: decoder(data, header))
    return decode_us + _best_us(lambda: interpolate(image, size=size, mode="bilinear", antialias=True))


def _best_us(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(1000):
            call()
        best = min(best, (time.perf_counter() - started) * 1e3)
    return best


if __name__ == "__main__":
    main()
