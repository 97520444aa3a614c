"""Images of one size: LLaVA's, whose tower is CLIP or SigLIP, and Gemma's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.order.draws import Ints
from datapipe.processors.pixels import Pixels
from datapipe.processors.processor import Processor


@dataclass(frozen=True)
class FixedProcessor(Processor):
    """Every image becomes one of a size, and as many tokens. See `Processor`.

    (transformers, `CLIPImageProcessor`, `SiglipImageProcessor`, `Gemma3ImageProcessor`)
    """

    height: int  # pixels
    width: int
    shortest: int | None  # pixels to which the shorter side is resized, before the middle is cut out; None: it is stretched
    pixels: Pixels
    per_image: int  # tokens
    id: int  # of the token of an image
    token_types: str = ""

    @property
    def unit(self) -> tuple[int, ...]:
        return (3, self.height, self.width)

    def grids(self, widths: Ints, heights: Ints) -> Ints:
        return np.ones((len(widths), 2), np.int64)

    def num_units(self, grids: Ints) -> Ints:
        return np.ones(len(grids), np.int64)

    def num_tokens(self, grids: Ints) -> Ints:
        return np.full(len(grids), self.per_image, np.int64)

    def tokens(self, rows: int, columns: int) -> Ints:
        return np.full(self.per_image, self.id, np.int64)

    def place(self, image: NDArray[np.uint8], rows: int, columns: int, out: torch.Tensor) -> None:
        if self.shortest is None:
            out[0] = self.pixels.resized(image, self.height, self.width)
            return
        height, width = image.shape[:2]
        least = min(height, width)
        height, width = (int(self.shortest * side / least) for side in (height, width))
        out[0] = _middle(self.pixels.resized(image, height, width), self.height, self.width)

    def resized(self, rows: int, columns: int) -> tuple[int, int]:
        return (self.height, self.width) if self.shortest is None else (self.shortest, self.shortest)

    def values(self, units: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.pixels.values(units, out).view(units.shape)


def _middle(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the middle of an image, black where the image does not reach."""
    missing = [max(0, wanted - had) for wanted, had in zip((height, width), image.shape[1:], strict=True)]
    if any(missing):
        before = [one // 2 for one in missing]
        padding = (before[1], missing[1] - before[1], before[0], missing[0] - before[0])
        image = torch.nn.functional.pad(image, padding)
    top, left = ((had - wanted) // 2 for had, wanted in zip(image.shape[1:], (height, width), strict=True))
    return image[:, top : top + height, left : left + width]
