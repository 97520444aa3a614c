"""Patches: models of Qwen2-VL's family see an image as a grid of patches, as many as its size makes.

An image is resized so that its sides are multiples of a patch times `merge`, near its own aspect, and its pixels between a least
and a most number. Patches come in blocks of merge x merge, each of which becomes one token; each patch is seen twice, as two
frames of a video. (transformers, `Qwen2VLImageProcessor`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.order.draws import Ints
from datapipe.processors.pixels import Pixels
from datapipe.processors.processor import Processor, Rope

_MOST_ASPECT = 200


@dataclass(frozen=True)
class PatchProcessor(Processor):
    """The processor of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and others of their kind. See `Processor`."""

    patch: int  # pixels of a side
    merge: int  # patches of a side of a token
    frames: int  # how often each patch is seen
    least: int  # pixels of a resized image
    most: int
    pixels: Pixels
    id: int  # of the token of an image

    @property
    def unit(self) -> tuple[int, ...]:
        return (3 * self.patch * self.patch,)

    @property
    def value(self) -> tuple[int, ...]:
        return (self.frames * self.unit[0],)

    @property
    def rope(self) -> Rope:
        return "grid"

    def grids(self, widths: Ints, heights: Ints) -> Ints:
        width, height = widths.astype(np.float64), heights.astype(np.float64)
        sides, area, factor = (height, width), height * width, self.patch * self.merge
        near = [np.round(side / factor) for side in sides]  # in tokens; halves to even, as Python does
        shrink = np.sqrt(area / self.most)
        small = [np.maximum(1, np.floor(side / shrink / factor)) for side in sides]
        grow = np.sqrt(self.least / area)
        large = [np.ceil(side * grow / factor) for side in sides]
        num = near[0] * near[1] * factor**2
        found = [np.where(num > self.most, *pair) for pair in zip(small, near, strict=True)]
        found = [np.where(num < self.least, *pair) for pair in zip(large, found, strict=True)]
        grids = np.stack(found, axis=1).astype(np.int64) * self.merge
        grids[np.maximum(*sides) / np.minimum(*sides) > _MOST_ASPECT] = -1
        return grids

    def refusal(self, width: int, height: int) -> str:
        return f"{width} x {height} pixels: its model takes no image of which a side is {_MOST_ASPECT} times the other; crop it"

    def token_grids(self, grids: Ints) -> Ints:
        return grids // self.merge

    def num_units(self, grids: Ints) -> Ints:
        return np.asarray(grids[:, 0] * grids[:, 1])

    def num_tokens(self, grids: Ints) -> Ints:
        return self.num_units(grids) // self.merge**2

    def tokens(self, rows: int, columns: int) -> Ints:
        return np.full(rows * columns // self.merge**2, self.id, np.int64)

    def place(self, image: NDArray[np.uint8], rows: int, columns: int, out: torch.Tensor) -> None:
        scaled = self.pixels.resized(image, rows * self.patch, columns * self.patch).permute(1, 2, 0).contiguous()
        merge, patch = self.merge, self.patch
        line = f"V{3 * patch}"  # of a patch, whose pixels move together, and channels part afterwards
        lines = scaled.numpy().reshape(rows * patch, -1).view(line).reshape(rows // merge, merge, patch, columns // merge, merge)
        # (blocks down, blocks across, in the block down, across, line)
        placed = np.ascontiguousarray(lines.transpose(0, 3, 1, 4, 2)).reshape(-1).view(np.uint8).reshape(len(out), -1, 3)
        channels = out.numpy().reshape(len(out), 3, -1)
        for number in range(3):
            channels[:, number] = placed[:, :, number]

    def resized(self, rows: int, columns: int) -> tuple[int, int]:
        return rows * self.patch, columns * self.patch

    def values(self, units: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.pixels.values(units, out, times=self.frames)

    def inputs(self, grids: Ints) -> dict[str, NDArray[Any]]:
        return {"image_grid_thw": np.insert(grids, 0, 1, axis=1)}
