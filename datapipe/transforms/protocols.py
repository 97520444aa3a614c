"""What a transform is to those who execute it.

A recipe is a list of transforms with torchvision v2's names, defaults and meaning. They are of three
sorts. *Geometry* is arithmetic on boxes: it becomes `Cuts`, which a backend carries out together with
the decoding. *Pixel operations* are torch functions over a block of equally sized images, with one set
of parameters per sample. *Batch operations* mix the samples of a finished batch. All chance comes from
`Draws`, so who executes, in what blocks, and on what device makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.draws import Draws

Interpolation = Literal["bilinear", "bicubic"]
Params = Mapping[str, NDArray[np.generic]]  # name -> (n, ...): one row per sample


@dataclass(frozen=True, slots=True)
class Cuts:
    """One cut per sample: decode a region, resize it, take a window of that, flip.

    Boxes are (top, left, height, width) in pixels. `window` may reach beyond the resized region; what
    lies outside is `fill`. Where `size` equals the region's size nothing is resampled.
    """

    region: NDArray[np.int64]  # (n, 4) of the image that comes in
    size: NDArray[np.int64]  # (n, 2) height, width to which the region is resized, antialiased
    window: NDArray[np.int64]  # (n, 4) of the resized region
    flip: NDArray[np.bool_]  # (n, 2) vertically, horizontally; after the window
    fill: tuple[int, int, int] = (0, 0, 0)  # RGB, uint8
    interpolation: Interpolation = "bilinear"  # of the resize, where there is one

    def __len__(self) -> int:
        return len(self.region)

    def __getitem__(self, rows: NDArray[np.int64]) -> Cuts:
        """The cuts of some of the samples."""
        return Cuts(self.region[rows], self.size[rows], self.window[rows], self.flip[rows], self.fill, self.interpolation)


@runtime_checkable
class GeometryOp(Protocol):
    """A transform that moves pixels: crop, resize, pad, flip."""

    def output_size(self, size: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """(height, width) that leaves, given the one that enters; None where it depends on the sample."""

    def fold(self, cuts: list[Cuts], draws: Draws, operation: int, /) -> list[Cuts]:
        """Append this transform to `cuts`: merged into the last one where that is exact, else as one more."""


@runtime_checkable
class PixelOp(Protocol):
    """A transform of pixel values over a block of images of one size."""

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """The parameters of each sample; `size` is (height, width)."""

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        """(n, 3, h, w) in, the same shape out. May work in place on what it is given; never keeps it."""

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        """The dtype that leaves, given the one that enters. Raises OptionError for one it cannot take."""


@runtime_checkable
class BatchOp(Protocol):
    """A transform that mixes the samples of one batch; drawn per batch, keyed by (seed, epoch, step, rank)."""

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """The batch's parameters; `draws` has length 1."""

    def apply(self, images: torch.Tensor, labels: torch.Tensor, params: Params, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (b, 3, h, w) and int64 labels (b,) in; images and float labels (b, num_classes) out."""
