"""The crop of the task, for contenders that have none of their own."""

from __future__ import annotations

import math
import random


def random_resized_crop(rng: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    """A box of 8 to 100% of the area and 3:4 to 4:3, or the whole image after ten misses."""
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    return 0, 0, height, width
