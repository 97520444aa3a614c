"""Draw scenes to try the other examples on: an image with a mask, a caption and a box each, in the forms that are common.

python examples/make_scenes.py scenes --num 400
datapipe convert scenes/pairs scenes-shards --to webdataset --from pairs
datapipe convert scenes/annotations.json boxes-shards --to webdataset --root scenes/pairs
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220)}
SHAPES = ("disc", "square")
SIDE = 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw scenes with masks, captions and boxes.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--num", type=int, default=400)
    arguments = parser.parse_args()
    pairs = arguments.directory / "pairs"
    pairs.mkdir(parents=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(arguments.num):
        rng = np.random.default_rng(number)
        colour, shape = list(COLOURS)[number % 3], number // 3 % 2
        radius, (x, y) = int(rng.integers(8, 16)), rng.integers(16, SIDE - 16, 2).tolist()
        rows, columns = np.mgrid[:SIDE, :SIDE]
        away = np.stack([rows - y, columns - x])
        inside = (away**2).sum(0) < radius**2 if shape == 0 else np.abs(away).max(0) < radius
        picture = rng.integers(90, 160, (SIDE, SIDE, 3), np.uint8)
        picture[inside] = COLOURS[colour]
        name = f"{number:06d}"
        Image.fromarray(picture).save(pairs / f"{name}.png")
        Image.fromarray((inside * (shape + 1)).astype(np.uint8)).save(pairs / f"{name}_mask.png")
        (pairs / f"{name}.txt").write_text(f"a {colour} {SHAPES[shape]}")
        images.append({"id": number, "file_name": f"{name}.png", "width": SIDE, "height": SIDE})
        box = [x - radius + 1, y - radius + 1, 2 * radius - 1, 2 * radius - 1]
        annotations.append({"id": number, "image_id": number, "category_id": shape, "bbox": box, "iscrowd": 0})
    categories = [{"id": label, "name": name} for label, name in enumerate(SHAPES)]
    coco = {"images": images, "annotations": annotations, "categories": categories}
    (arguments.directory / "annotations.json").write_text(json.dumps(coco))


if __name__ == "__main__":
    main()
