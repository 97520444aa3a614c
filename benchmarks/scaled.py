"""decode="scaled" against "exact", for large photographs: CPU time of an image, and how far pixels differ.

    python -m benchmarks.scaled              # 3 minutes
    python -m benchmarks.scaled --dry-run    # little of everything: does it run?

Generated photographs, enlarged, with the noise of a sensor. An evaluation resizes and cuts out the middle, a training cuts at
random and resizes, both to 224 pixels. Each thread of a loader does what is measured here in one.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks import harness
from benchmarks.ratios import ratio_of
from datapipe.codecs.decode import open_decoder
from datapipe.codecs.probe import probe
from datapipe.kinds.images.cutting import Cut, ScaledCut
from datapipe.order.draws import Draws
from datapipe.testing.synthetic_images import make_image_folder
from datapipe.transforms import CenterCrop, RandomResizedCrop, Recipe, Resize
from datapipe.transforms.execute import cut_through, row_cuts

SIZES = {"12 megapixels": (4032, 3024), "3 megapixels": (2048, 1536), "1 megapixel": (1280, 960)}
RECIPES: dict[str, list[Any]] = {
    "evaluation": [Resize(256), CenterCrop(224)],
    "training": [RandomResizedCrop(224)],
}
_NOISE = 4.0  # of 255, standard deviation


def main() -> None:
    arguments = _parse()
    torch.set_num_threads(1)
    num = 3 if arguments.dry_run else 24
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        photos = sorted(make_image_folder(Path(name) / "photos", num_images=num, num_classes=1).glob("*/*"))
        cases = {
            f"{recipe}, {size}": _measured([_enlarged(path, *SIZES[size]) for path in photos], RECIPES[recipe], arguments.rounds)
            for size in SIZES
            for recipe in RECIPES
        }
    result = {"settings": {"num_images": num, "num_rounds": arguments.rounds, "noise": _NOISE}, "cases": cases}
    if not arguments.dry_run:
        harness.save("scaled", "benchmarks.scaled", result, results=arguments.results)
    for title, case in cases.items():
        print(f"{title:<28} {case}")


def _enlarged(path: Path, width: int, height: int) -> bytes:
    """Return a photograph of that size as a JPEG."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)).astype(np.float32)
    noise = np.random.default_rng(0).normal(0, _NOISE, pixels.shape)
    sink = io.BytesIO()
    Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8)).save(sink, "JPEG", quality=90)
    return sink.getvalue()


def _decoders() -> dict[str, Cut]:
    decoder = open_decoder()
    return {
        "exact": lambda data, header, steps, out: cut_through(decoder(data, header, steps[0].region), steps, out),
        "scaled": ScaledCut(decoder),
    }


def _measured(images: list[bytes], transforms: list[Any], num_rounds: int) -> dict[str, Any]:
    """Return the CPU time of an image in both ways, the ratio of exact to scaled, and the difference of pixels, of 255."""
    recipe, decoders = Recipe.of(transforms), _decoders()
    headers = [probe(data) for data in images]
    sizes = np.array([(header.height, header.width) for header in headers])
    draws = Draws(0, 0, np.arange(len(images)))
    steps = [[row_cuts(cuts)[number] for cuts in recipe.draw_cuts(draws, sizes)] for number in range(len(images))]
    taken: dict[str, list[float]] = {decode: [] for decode in decoders}
    made: dict[str, list[np.ndarray[Any, Any]]] = {}
    for _ in range(num_rounds):
        for decode, decoder in decoders.items():
            began = time.thread_time()
            made[decode] = []
            for data, header, chain in zip(images, headers, steps, strict=True):
                out = np.empty((*chain[-1].window[2:], 3), np.uint8)
                decoder(data, header, chain, out)
                made[decode].append(out)
            taken[decode].append((time.thread_time() - began) / len(images) * 1e3)
    pairs = zip(made["exact"], made["scaled"], strict=True)
    differences = np.concatenate([np.abs(one.astype(int) - other).ravel() for one, other in pairs])
    return {
        **{f"{decode}_ms": round(statistics.median(values), 2) for decode, values in taken.items()},
        "ratio": dataclasses.asdict(ratio_of(taken["exact"], taken["scaled"])),
        "mean_difference": round(float(differences.mean()), 3),
        "largest_difference": int(differences.max()),
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaled", description="Decoding at a scale against decoding in full."
    )
    return harness.run_arguments(parser, rounds=5, scratch="photographs of 100 MB")


if __name__ == "__main__":
    main()
