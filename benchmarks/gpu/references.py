"""What torchvision and Pillow make of the same cuts, for comparison."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.contenders.torchvision_transforms import import_torchvision
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.execute import RowCut, row_cuts

Pixels = NDArray[np.uint8]  # (h, w, 3)


def reference(path: Path, sample: int, transforms: list[Any], seed: int, *, by: str) -> torch.Tensor:
    """(3, h, w) of the recipe's dtype: decoded whole by Pillow, cut by "pillow" or "torchvision" (its tensor functions).

    The boxes are those that datapipe draws for this sample. Raises ImportError without torchvision.
    """
    with Image.open(path) as opened:
        image = np.asarray(opened.convert("RGB"))
    recipe = Recipe.of(transforms)
    draws = Draws(seed, 0, np.array([sample], np.int64))
    for cuts in recipe.draw_cuts(draws, np.array([image.shape[:2]], np.int64)):
        image = _cut(image, row_cuts(cuts)[0], by=by)
    block = torch.from_numpy(image.copy()).unsqueeze(0)
    out = torch.empty(block.shape, dtype=recipe.output_dtype)
    recipe.run_pixels(block, draws, out)
    return out[0].permute(2, 0, 1)


def _cut(image: Pixels, how: RowCut, *, by: str) -> Pixels:
    top, left, height, width = how.region
    region = image[top : top + height, left : left + width]
    resized = _resized(region, how.size[0], how.size[1], by=by)
    top, left, height, width = how.window
    out = np.empty((height, width, 3), np.uint8)
    out[:] = how.fill
    rows = range(max(0, -top), min(height, resized.shape[0] - top))
    columns = range(max(0, -left), min(width, resized.shape[1] - left))
    if rows and columns:
        out[rows.start : rows.stop, columns.start : columns.stop] = resized[
            top + rows.start : top + rows.stop, left + columns.start : left + columns.stop
        ]
    vertically, horizontally = how.flip
    return out[:: -1 if vertically else 1, :: -1 if horizontally else 1]


def _resized(region: Pixels, height: int, width: int, *, by: str) -> Pixels:
    if region.shape[:2] == (height, width):
        return region
    if by == "pillow":
        return np.asarray(Image.fromarray(region).resize((width, height), Image.Resampling.BILINEAR))
    import_torchvision()
    functional: Any = importlib.import_module("torchvision.transforms.v2.functional")
    tensor = torch.from_numpy(region.copy()).permute(2, 0, 1)
    resized: Pixels = functional.resize(tensor, [height, width], antialias=True).permute(1, 2, 0).numpy()
    return resized
