"""What a cache of decoded images brings: images/s in the first epoch, which fills it, and in the later ones.

    python -m benchmarks.cache
    python -m benchmarks.cache --dry-run      # tiny images, one round: does it run?

Each variant of each recipe runs once per round, in a fresh process and with an empty cache; the order rotates. The page
cache is warm in all of them: slow storage, which a cache in memory saves from being read again, is not measured here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.ratios import ratio_of, rotated

RECIPES = ("whole", "resized", "evaluation")
PLACES = ("none", "none-again", "ram", "disk")
_BATCH = 128


def main() -> None:
    arguments = _parse()
    if arguments.once:
        shards, recipe, place, num_threads, num_epochs = json.loads(arguments.once)
        print(json.dumps(measure(Path(shards), recipe, place, num_threads, num_epochs)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        shards = make_shards(Path(scratch), arguments.images, scale="small" if arguments.dry_run else "imagenet")
        names = [f"{recipe}, {place}" for recipe in RECIPES for place in PLACES]
        rounds: dict[str, list[list[float]]] = {name: [] for name in names}
        for number in range(arguments.rounds):
            for name in rotated(names, number):
                recipe, place = name.split(", ")
                rates = _run([str(shards), recipe, place, arguments.threads, arguments.epochs], scratch)
                rounds[name].append(rates)
                shown = "  ".join(f"{rate:7.0f}" for rate in rates)
                print(f"round {number + 1}/{arguments.rounds}  {name:<24} {shown} images/s by epoch", flush=True)
    result = {
        "settings": {
            "num_images": arguments.images,
            "num_threads": arguments.threads,
            "num_epochs": arguments.epochs,
            "batch_size": _BATCH,
            "num_rounds": arguments.rounds,
        },
        **summarise(rounds),
    }
    print("\n".join(as_lines(result)))
    if not arguments.dry_run:
        harness.save("cache", "benchmarks.cache", result, results=arguments.results)


def make_shards(directory: Path, num_images: int, *, scale: str) -> Path:
    """Generated photographs, converted."""
    from converters import ConvertOptions, convert
    from datapipe.testing.synthetic_images import make_image_folder

    folder = make_image_folder(directory / "folder", num_images=num_images, scale=scale)
    convert(ConvertOptions(folder, directory / "shards"))
    return directory / "shards"


def measure(shards: Path, recipe: str, place: str, num_threads: int, num_epochs: int) -> list[float]:
    """Images/s of each epoch, in this process. A cache on disk is made next to the shards, and removed."""
    import datapipe as dp

    with tempfile.TemporaryDirectory(dir=shards.parent) as directory:
        cache = {"ram": "ram", "disk": directory}.get(place)
        loader = dp.DataLoader(
            dp.Images(shards, cache=cache),
            batch_size=_BATCH,
            shuffle=True,
            seed=0,
            num_workers=num_threads,
            transform=_transform(recipe),
            device="cpu",
        )
        rates = []
        for _ in range(num_epochs):
            started = time.perf_counter()
            num_images = sum(len(images) for images, _ in loader)
            rates.append(num_images / (time.perf_counter() - started))
        if loader.cache_stats is not None and loader.cache_stats.num_kept < len(loader.dataset):
            raise SystemExit(f"{place}: the cache is too small for the dataset: {loader.cache_stats}")
    return rates


def _transform(recipe: str) -> list[Any]:
    """What is kept: the whole photograph; one whose shorter side is 256; the finished crop."""
    import torch

    from datapipe import transforms as T

    float32 = [T.ToDtype(torch.float32, scale=True), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
    if recipe == "whole":
        return [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *float32]
    if recipe == "resized":
        return [T.Resize(256), T.RandomCrop(224), T.RandomHorizontalFlip(), *float32]
    return [T.Resize(256), T.CenterCrop(224), *float32]


def _run(once: list[Any], scratch: str) -> list[float]:
    module = ["benchmarks.cache", "--once", json.dumps(once)]
    rates: list[float] = harness.run_contender(str(once), module, environment={"XDG_CACHE_HOME": scratch})
    return rates


def summarise(rounds: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Medians by variant of the first epoch and of the later ones together, and their ratios to no cache."""
    first = {name: [rates[0] for rates in of_one] for name, of_one in rounds.items()}
    later = {name: [statistics.median(rates[1:]) for rates in of_one] for name, of_one in rounds.items()}
    variants = {}
    for name in rounds:
        without = f"{name.split(', ')[0]}, none"
        variants[name] = {
            "first_epoch": round(statistics.median(first[name]), 1),
            "later_epochs": round(statistics.median(later[name]), 1),
            "rounds": [[round(rate, 1) for rate in rates] for rates in rounds[name]],
            "first_to_none": dataclasses.asdict(ratio_of(first[name], first[without])),
            "later_to_none": dataclasses.asdict(ratio_of(later[name], later[without])),
        }
    return {"variants": variants}


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = [f"{'images/s':<24} {'epoch 1':>17} {'later epochs':>17}"]
    for name, entry in result["variants"].items():
        first, later = (f"{entry[key]:8.0f}" for key in ("first_epoch", "later_epochs"))
        ratios = [f"({entry[key]['ratio']:.2f}x)" for key in ("first_to_none", "later_to_none")]
        lines.append(f"{name:<24} {first} {ratios[0]:>8} {later} {ratios[1]:>8}")
    return lines


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache", description="Epochs with and without a cache.")
    parser.add_argument("--images", type=int, help="generated photographs (default: 3000; 64 with --dry-run)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="default: 7; 1 with --dry-run")
    parser.add_argument("--threads", type=int, default=2, help="decoding threads")
    parser.add_argument("--scratch", type=Path, help="directory for images, shards and caches (2 GB); default: the system's")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="tiny images, one round, nothing saved")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.images = arguments.images or (64 if arguments.dry_run else 3000)
    arguments.rounds = arguments.rounds or (1 if arguments.dry_run else 7)
    if arguments.epochs < 2:
        parser.error("--epochs must be at least 2: the first one fills the cache")
    return arguments


if __name__ == "__main__":
    main()
