"""Tiles: an image is cut into squares that the model's vision tower sees one by one, and once more as a whole."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.order.draws import Ints
from datapipe.processors.pixels import Pixels
from datapipe.processors.processor import Processor


@dataclass(frozen=True)
class CanvasProcessor(Processor):
    """InternVL's: the image is stretched over the canvas of tiles whose aspect is nearest to its own. See `Processor`.

    Among canvases equally near a larger one is taken while it has less than twice the image's pixels. The image as a whole, as
    one more tile, comes last, unless there is only one. (transformers, `GotOcr2ImageProcessor`)
    """

    side: int  # pixels of a tile
    least: int  # tiles
    most: int
    pixels: Pixels
    per_tile: int  # tokens
    id: int  # of the token of an image
    around: tuple[int, int]  # the ids before and after the tokens of an image

    @property
    def unit(self) -> tuple[int, ...]:
        return (3, self.side, self.side)

    @functools.cached_property
    def _canvases(self) -> list[tuple[int, int]]:
        """Columns and rows of the canvases, by their number of tiles."""
        sides = range(1, self.most + 1)
        found = [(across, down) for across in sides for down in sides if self.least <= across * down <= self.most]
        return sorted(found, key=lambda one: one[0] * one[1])

    def grids(self, widths: Ints, heights: Ints) -> Ints:
        aspect, area = widths / heights, widths * heights
        best = np.full(len(widths), np.inf)
        grids = np.ones((len(widths), 2), np.int64)
        for across, down in self._canvases:
            distance = np.abs(aspect - across / down)
            is_large = (distance == best) & (area > 0.5 * self.side * self.side * across * down)
            grids[(distance < best) | is_large] = down, across
            best = np.minimum(best, distance)
        return grids

    def num_units(self, grids: Ints) -> Ints:
        num = grids[:, 0] * grids[:, 1]
        return np.where(num > 1, num + 1, num)

    def num_tokens(self, grids: Ints) -> Ints:
        return self.num_units(grids) * self.per_tile + 2

    def tokens(self, rows: int, columns: int) -> Ints:
        (num,) = self.num_units(np.array([[rows, columns]]))
        before, after = self.around
        return np.concatenate([[before], np.full(num * self.per_tile, self.id), [after]]).astype(np.int64)

    def place(self, image: NDArray[np.uint8], rows: int, columns: int, out: torch.Tensor) -> None:
        put_tiles(self.pixels.resized(image, rows * self.side, columns * self.side), rows, columns, out)
        if rows * columns > 1:
            out[-1] = self.pixels.resized(image, self.side, self.side)

    def resized(self, rows: int, columns: int) -> tuple[int, int]:
        return rows * self.side, columns * self.side

    def values(self, units: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.pixels.values(units, out).view(units.shape)


@dataclass(frozen=True)
class SplitProcessor(Processor):
    """The processor of Idefics3 and SmolVLM: the longer side gets a given length, and both are rounded up to whole tiles.

    The image as a whole, as one more tile, comes last. In the text each tile has a token that says its row and column. See
    `Processor`. (transformers, `Idefics3ImageProcessor`, `Idefics3Processor`)
    """

    longest: int  # pixels of the longer side, before it is rounded up
    side: int  # pixels of a tile
    pixels: Pixels
    per_tile: int  # tokens
    id: int  # of the token of an image
    before: int  # the id before each tile, and after the last
    whole: int  # the id that marks the tile that is the whole image
    marks: tuple[tuple[tuple[int, ...], ...], ...]  # the ids that mark the tile of a row and a column
    line: tuple[int, ...]  # the ids of the end of a line, which ends each row of tiles
    lines: tuple[int, ...]  # the ids of two ends of a line, which come before the whole
    splits: bool = True

    @property
    def unit(self) -> tuple[int, ...]:
        return (3, self.side, self.side)

    def _resized(self, widths: Ints, heights: Ints) -> tuple[Ints, Ints]:
        """Return the heights and widths of images whose longer side has its length."""
        aspect, is_wide = widths / heights, widths >= heights
        other = np.where(is_wide, self.longest / aspect, self.longest * aspect).astype(np.int64)
        other = np.maximum(1, other + other % 2)
        longest = np.full(len(other), self.longest)
        return np.where(is_wide, other, longest), np.where(is_wide, longest, other)

    def grids(self, widths: Ints, heights: Ints) -> Ints:
        if not self.splits:
            return np.zeros((len(widths), 2), np.int64)
        height, width = self._resized(widths, heights)
        aspect, is_wide, side = width / height, width >= height, self.side
        longer = -(-np.where(is_wide, width, height) // side) * side
        other = np.where(is_wide, longer / aspect, longer * aspect).astype(np.int64)
        longer, other = longer // side, -(-other // side)
        grids = np.stack([np.where(is_wide, other, longer), np.where(is_wide, longer, other)], axis=1)
        grids[(grids == 1).all(axis=1)] = 0  # not cut
        return grids

    def num_units(self, grids: Ints) -> Ints:
        return np.asarray(grids[:, 0] * grids[:, 1] + 1)

    def num_tokens(self, grids: Ints) -> Ints:
        if not self.splits:
            return np.full(len(grids), self.per_tile + 3, np.int64)
        rows, columns = grids.T
        num_marks = np.zeros((len(self.marks) + 1, len(self.marks) + 1), np.int64)
        num_marks[1:, 1:] = np.array([[len(one) for one in row] for row in self.marks]).cumsum(0).cumsum(1)
        num = rows * columns * (self.per_tile + 1) + num_marks[rows, columns] + self.per_tile + 3
        found: Ints = num + np.where(rows > 0, (rows - 1) * len(self.line) + len(self.lines), 0)
        return found

    def tokens(self, rows: int, columns: int) -> Ints:
        images = [self.id] * self.per_tile
        found: list[int] = []
        for row in range(rows):
            for mark in self.marks[row][:columns]:
                found += [self.before, *mark, *images]
            found += self.lines if row == rows - 1 else self.line
        return np.array([*found, self.before, self.whole, *images, self.before], np.int64)

    def place(self, image: NDArray[np.uint8], rows: int, columns: int, out: torch.Tensor) -> None:
        height, width = self._resized(*(np.array([side]) for side in (image.shape[1], image.shape[0])))
        scaled = self.pixels.resized(image, int(height[0]), int(width[0]))
        if rows:
            scaled = self.pixels.resized(scaled, rows * self.side, columns * self.side)
            put_tiles(scaled, rows, columns, out)
        out[-1] = self.pixels.resized(scaled, self.side, self.side)

    def resized(self, rows: int, columns: int) -> tuple[int, int]:
        return (rows * self.side, columns * self.side) if rows else (self.longest, self.longest)

    def values(self, units: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.pixels.values(units, out).view(units.shape)

    def batched(self, values: torch.Tensor) -> torch.Tensor:
        return values[None]


def put_tiles(image: torch.Tensor, rows: int, columns: int, out: torch.Tensor) -> None:
    """Write an image of (3, rows * side, columns * side) into the first rows * columns tiles of `out`, row by row."""
    side = out.shape[-1]
    cut = image.view(3, rows, side, columns, side).permute(1, 3, 0, 2, 4)
    out[: rows * columns].view(rows, columns, 3, side, side).copy_(cut)
