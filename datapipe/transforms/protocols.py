"""Protocols of transforms, for the code that executes them.

A recipe is a list of transforms with torchvision v2's names, defaults and meaning. There are three kinds. *Geometry* is
arithmetic on boxes: it becomes `Cuts`, which a backend executes together with the decoding. *Pixel operations* are torch
functions over a block of images of one size, with one set of parameters per sample. *Batch operations* mix the samples of
a finished batch. All random numbers come from `Draws`, so the result does not depend on the executor, the blocks or the
device.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.order.draws import Draws

Interpolation = Literal["bilinear", "bicubic"]
Params = Mapping[str, NDArray[np.generic]]  # name -> (n, ...): one row per sample


class Locality(enum.Enum):
    """Kinds of pixel operation, by the pixels they read, which decides the geometry that may move before one.

    An operation that declares nothing counts as PLACE.
    """

    POINT = "point"  # the pixel itself: commutes with flips and with crops
    IMAGE = "image"  # the pixel and values summed over the image: commutes with flips of uint8 images
    PLACE = "place"  # the pixel's position or its neighbours: commutes with nothing


@dataclass(frozen=True, slots=True)
class Cuts:
    """One cut per sample: decode a region, resize it, take a window of the result, flip.

    Boxes are (top, left, height, width) in pixels. `window` may reach beyond the resized region; pixels outside are `fill`.
    Where `size` equals the region's size nothing is resampled.
    """

    region: NDArray[np.int64]  # (n, 4) in the input image
    size: NDArray[np.int64]  # (n, 2) height, width to which the region is resized, antialiased
    window: NDArray[np.int64]  # (n, 4) in the resized region
    flip: NDArray[np.bool_]  # (n, 2) vertically, horizontally; after the window
    fill: tuple[int, int, int] = (0, 0, 0)  # RGB, uint8
    interpolation: Interpolation = "bilinear"  # of the resize, if any

    def __len__(self) -> int:
        return len(self.region)

    def __getitem__(self, rows: NDArray[np.int64]) -> Cuts:
        """Return the cuts of some of the samples."""
        return Cuts(self.region[rows], self.size[rows], self.window[rows], self.flip[rows], self.fill, self.interpolation)


@runtime_checkable
class GeometryOp(Protocol):
    """A transform that moves pixels: crop, resize, pad, flip."""

    def output_size(self, size: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return the output's (height, width) for that of the input; None if it depends on the sample."""

    def fold(self, cuts: list[Cuts], draws: Draws, operation: int, /) -> list[Cuts]:
        """Append this transform to `cuts`: merged into the last one if that is exact, else as one more."""


@runtime_checkable
class PixelOp(Protocol):
    """A transform of pixel values over a block of images of one size."""

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return the parameters of each sample; `size` is (height, width)."""

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        """Return (n, 3, h, w) images for (n, 3, h, w) `images`. May work in place on the input; never keeps it."""

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        """Return the output dtype for an input dtype. Raises OptionError for an unsupported one."""


@runtime_checkable
class BatchOp(Protocol):
    """A transform that mixes the samples of a batch; drawn once per batch, keyed by (seed, epoch, step, rank)."""

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return the batch's parameters; `draws` has length 1."""

    def apply(self, images: torch.Tensor, labels: torch.Tensor, params: Params, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and float labels (b, num_classes) for images (b, 3, h, w) and int64 labels (b,)."""
