"""GaussianBlur: a separable blur with a random sigma per sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.options import Range, check_range, check_size, is_number, refusal, source_repr
from datapipe.transforms.pixels.planar import Planes, from_planes, groups, to_planes
from datapipe.transforms.protocols import Locality, Params


@dataclass(frozen=True, repr=False)
class GaussianBlur:
    """Blur with a Gaussian of random sigma; the image is extended by reflection.

    >>> T.GaussianBlur(23, sigma=(0.1, 2.0))

    `kernel_size`: odd, one int or (x, y); as in torchvision, the only argument where x comes first. `sigma`: one number or
    (low, high), in torchvision's unit: its kernel is exp(-(x / sigma)^2) over x from -lim to lim with
    lim = (kernel_size - 1) / (2 sqrt 2), that is a Gaussian of standard deviation sigma.
    """

    kernel_size: tuple[int, int]
    sigma: Range = (0.1, 2.0)

    locality: ClassVar[Locality] = Locality.PLACE

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        sizes = check_size(self, kernel_size, argument="kernel_size")
        if sizes[0] % 2 == 0 or sizes[1] % 2 == 0:
            raise refusal(self, "kernel_size", kernel_size, "it must be odd")
        bounds = check_range(self, "sigma", (sigma, sigma) if is_number(sigma) else sigma, least=0)
        if bounds[0] == 0:
            raise refusal(self, "sigma", sigma, "it must be greater than 0")
        object.__setattr__(self, "kernel_size", sizes)
        object.__setattr__(self, "sigma", bounds)

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return sigma (n,). Raises OptionError for images that are not larger than half the kernel."""
        if size[1] <= self.kernel_size[0] // 2 or size[0] <= self.kernel_size[1] // 2:
            raise OptionError(
                f"{self!r}: images of {size[0]} x {size[1]} (height x width) are too small to reflect half a kernel; "
                "use a smaller kernel_size"
            )
        low, high = self.sigma
        return {"sigma": low + (high - low) * draws.uniform(operation, 1)[:, 0]}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        for rows in groups(images):
            sigma = params["sigma"][rows].astype(np.float64)
            blurred = blur_planes(
                to_planes(images[rows]),
                gaussian_kernels(self.kernel_size[0], sigma),
                gaussian_kernels(self.kernel_size[1], sigma),
            )
            if not images.dtype.is_floating_point:
                blurred.round_()
            from_planes(blurred, images[rows])
        return images

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return dtype


def gaussian_kernels(length: int, sigma: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (m, length) weights that sum to 1, for (m,) sigmas in the unit of `GaussianBlur`."""
    limit = (length - 1) / (2 * math.sqrt(2))
    exponents = -((np.linspace(-limit, limit, length) / sigma[:, None]) ** 2)
    weights = np.exp(exponents)  # the middle one is 1, so the sum is never 0
    normalised: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def blur_planes(planes: Planes, along_x: NDArray[np.float64], along_y: NDArray[np.float64]) -> Planes:
    """Convolve each image, continued by reflection, with its own kernels, (m, kx) and (m, ky).

    Two passes replace a square kernel, each a sum of shifted images: on a CPU that takes half the time of torch's best
    convolution, for kernels from 3 to 23.
    """
    height, width = planes.shape[2:]
    half_x, half_y = along_x.shape[1] // 2, along_y.shape[1] // 2
    padded = pad(planes, (half_x, half_x, half_y, half_y), mode="reflect")
    rows = _weighted_sum([padded[:, :, :, shift : shift + width] for shift in range(along_x.shape[1])], along_x)
    return _weighted_sum([rows[:, :, shift : shift + height] for shift in range(along_y.shape[1])], along_y)


def _weighted_sum(shifted: list[Planes], weights: NDArray[np.float64]) -> Planes:
    """Return the sum of (m, 3, h, w) planes, each times its column of `weights` (m, k)."""
    like = shifted[0]
    columns = torch.from_numpy(weights).to(like.device, like.dtype, non_blocking=True).T.reshape(len(shifted), -1, 1, 1, 1)
    total = shifted[0] * columns[0]
    for planes, weight in zip(shifted[1:], columns[1:], strict=True):
        total.addcmul_(planes, weight)
    return total
