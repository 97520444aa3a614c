"""RandomResizedCrop: the usual crop of image training, drawn for many samples in few numpy calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from datapipe.order.draws import Draws, log_uniform
from datapipe.transforms import cuts as chain
from datapipe.transforms.options import Range, check_interpolation, check_range, check_size, refusal, source_repr
from datapipe.transforms.protocols import Cuts, Interpolation

Size = tuple[int, int]
_NUM_ATTEMPTS = 10  # attempts before the central crop
_FEW = 24  # up to this many samples, computing all attempts is cheaper than finding which samples need them


@dataclass(frozen=True, repr=False)
class RandomResizedCrop:
    """Cut out a box of random area and aspect ratio and resize it to `size`.

    >>> T.RandomResizedCrop(224, scale=(0.35, 1.0))

    `scale` bounds the area as a share of the image's, `ratio` the box's width / height (uniform in its logarithm). As in
    torchvision, up to ten boxes are tried; if none fits, the largest central one within `ratio` is taken.
    """

    size: Size = field(metadata={"square": True})
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: object = "bilinear",
        antialias: bool = True,
    ) -> None:
        put = object.__setattr__
        put(self, "size", check_size(self, size))
        put(self, "scale", check_range(self, "scale", scale, least=0))
        put(self, "ratio", check_range(self, "ratio", ratio, least=0))
        if self.ratio[0] == 0:
            raise refusal(self, "ratio", ratio, "both must be greater than 0")
        if self.scale[1] == 0:
            raise refusal(self, "scale", scale, "the upper one must be greater than 0")
        put(self, "interpolation", check_interpolation(self, interpolation, antialias))
        put(self, "antialias", True)

    __repr__ = source_repr

    def output_size(self, size: Size | None, /) -> Size | None:
        return self.size

    def fold(self, cuts: list[Cuts], draws: Draws, operation: int, /) -> list[Cuts]:
        boxes = self.boxes(chain.output_sizes(cuts), draws, operation)
        return chain.crop_and_resize(cuts, boxes, self.size, self.interpolation)

    def boxes(self, sizes: NDArray[np.int64], draws: Draws, operation: int) -> NDArray[np.int64]:
        """Return the (n, 4) boxes to cut out of images of these (n, 2) sizes."""
        if len(sizes) <= _FEW:  # all attempts at once: the overhead of numpy's calls exceeds their work
            box, fits = self._first_fit(sizes, draws.uniform(operation, 4 * _NUM_ATTEMPTS))
        else:
            box, fits = self._first_fit(sizes, draws.uniform(operation, 4))
            if not fits.all():
                rows = np.flatnonzero(~fits)
                box[rows], fits[rows] = self._first_fit(sizes[rows], draws[rows].uniform(operation, 4 * _NUM_ATTEMPTS))
        if not fits.all():
            box[~fits] = self._central(sizes[~fits])
        return box

    def _first_fit(self, sizes: NDArray[np.int64], uniform: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the first box drawn from `uniform` (n, 4 * attempts) that fits, and False where none does."""
        num_samples = len(sizes)
        drawn = uniform.reshape(num_samples, -1, 4)
        low, high = self.scale
        area = sizes[:, :1] * sizes[:, 1:]
        edge = np.sqrt(((high - low) * drawn[:, :, 0] + low) * area)
        skew = log_uniform(drawn[:, :, 1], math.sqrt(self.ratio[0]), math.sqrt(self.ratio[1]))  # sqrt(width / height)
        height, width = np.rint(edge / skew), np.rint(edge * skew)
        fits = (height <= sizes[:, :1]) & (width <= sizes[:, 1:]) & (height * width > 0)
        first = fits.argmax(axis=1)
        first += np.arange(0, fits.size, fits.shape[1])
        box = np.empty((num_samples, 4), np.int64)
        box[:, 2], box[:, 3] = height.take(first), width.take(first)
        box[:, :2] = uniform.reshape(-1, 4).take(first, axis=0)[:, 2:] * (sizes - box[:, 2:] + 1)
        return box, fits.take(first)

    def _central(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        height, width = sizes[:, 0], sizes[:, 1]
        shape = width / height
        low, high = self.ratio
        box = np.zeros((len(sizes), 4), np.int64)
        box[:, 2] = np.where(shape < low, np.maximum(np.rint(width / low), 1), height)
        box[:, 3] = np.where(shape > high, np.maximum(np.rint(height * high), 1), width)
        box[:, :2] = (sizes - box[:, 2:]) // 2
        return box
