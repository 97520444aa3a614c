"""What a recipe makes of images in memory, one by one, as the CPU backend does it with encoded ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import cut_through, row_cuts


def photo(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """A picture with smooth areas, edges, and some noise."""
    rng = np.random.default_rng((seed, height, width))
    coarse = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3)).repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    y, x = np.mgrid[:height, :width]
    waves = 60 * np.sin(x / 9 + y / 17)[:, :, None]
    return np.clip(0.6 * coarse + waves + rng.integers(-9, 10, (height, width, 3)) + 40, 0, 255).astype(np.uint8)


def ramp(side: int = 64) -> NDArray[np.uint8]:
    """Pixels that say where they lie: red is 4 per column, green 4 per row."""
    assert side <= 64
    image = np.zeros((side, side, 3), np.uint8)
    image[:, :, 0] = 4 * np.arange(side)
    image[:, :, 1] = image[:, :, 0].T
    return image


def made(recipe: Recipe, image: NDArray[np.uint8], sample: int = 0, seed: int = 0) -> torch.Tensor:
    """(3, h, w) of the recipe's dtype: what its geometry and pixel operations make of the image."""
    return before_rest(recipe, image, sample, seed).permute(2, 0, 1)


def before_rest(recipe: Recipe, image: NDArray[np.uint8], sample: int = 0, seed: int = 0) -> torch.Tensor:
    """The same as (h, w, 3)."""
    draws = Draws(seed, 0, np.array([sample]))
    chain = recipe.draw_cuts(draws, np.array([image.shape[:2]]))
    top, left, height, width = chain[0].region[0].tolist()
    block = torch.empty((1, *chain[-1].window[0, 2:].tolist(), 3), dtype=torch.uint8)
    region = image[top : top + height, left : left + width]
    cut_through(region, [row_cuts(cuts)[0] for cuts in chain], block[0].numpy())
    out = torch.empty(block.shape, dtype=recipe.output_dtype)
    recipe.run_pixels(block, draws, out)
    return out[0]


def many(recipe: Recipe, image: NDArray[np.uint8], count: int) -> Iterator[torch.Tensor]:
    """What becomes of the image as samples 0 to count - 1."""
    return (made(recipe, image, sample) for sample in range(count))


def greatest_gap(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The two-sample Kolmogorov-Smirnov statistic."""
    values = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(side), values, side="right") / len(side) for side in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def gap_limit(count: int) -> float:
    """Its 0.01 % point for two samples of `count` each: with fixed seeds a test passes always or never."""
    return 2.225 * (2 / count) ** 0.5
