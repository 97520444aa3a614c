"""Shear, translation and rotation with nearest-neighbour sampling, as torchvision's affine does them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

Float = NDArray[np.float64]


def shear_matrix(shear_x: Float, shear_y: Float, size: tuple[int, int]) -> Float:
    """Return (m, 2, 3) inverse maps of shears x' = x + shear_x * y, y' = y + shear_y * x about the top left corner.

    One of the two must be 0. Coordinates are in pixels from the centre of an image of that (height, width).
    """
    height, width = size
    matrix = _identity(len(shear_x))
    matrix[:, 0, 1], matrix[:, 1, 0] = shear_x, shear_y
    # About the corner (-width / 2, -height / 2) instead of the centre.
    matrix[:, 0, 2] = shear_x * (height * 0.5)
    matrix[:, 1, 2] = shear_y * (width * 0.5)
    return matrix


def translation_matrix(right: Float, down: Float) -> Float:
    """Return (m, 2, 3) inverse maps of translations by this many pixels."""
    matrix = _identity(len(right))
    matrix[:, 0, 2], matrix[:, 1, 2] = -right, -down
    return matrix


def rotation_matrix(degrees: Float) -> Float:
    """Return (m, 2, 3) inverse maps of counter-clockwise rotations about the centre."""
    angle = np.radians(-degrees)
    matrix = _identity(len(degrees))
    matrix[:, 0, 0] = matrix[:, 1, 1] = np.cos(angle)
    matrix[:, 0, 1], matrix[:, 1, 0] = np.sin(angle), -np.sin(angle)
    return matrix


def warp(images: torch.Tensor, matrix: Float, fill: tuple[int, int, int]) -> None:
    """Replace each image, in place, by sampling it through its inverse map, with `fill` outside.

    `images`: (m, 3, h, w), NHWC in memory. `matrix`: (m, 2, 3), from centred output pixels to centred input pixels. The
    float32 arithmetic and the rounding (half to even) are those of affine grids and grid_sample, so that the same neighbour
    is chosen.
    """
    num_samples, _, height, width = images.shape
    device = images.device
    half = np.array([0.5 * width, 0.5 * height], np.float32)[:, None]
    scaled = torch.from_numpy(matrix.astype(np.float32) / half).to(device, non_blocking=True)  # to [-1, 1]
    x = _centred(width).to(device, non_blocking=True)
    y = _centred(height).to(device, non_blocking=True)[:, None]
    # No matrix product: on a GPU it may run in TF32 or half precision and be wrong by whole pixels.
    (a, b, c), (d, e, f) = scaled.permute(1, 2, 0)[:, :, :, None, None]
    source_x = (x * a + y * b).add_(c).add_(1).mul_(width).sub_(1).div_(2).round_()  # (m, h, w)
    source_y = (x * d + y * e).add_(f).add_(1).mul_(height).sub_(1).div_(2).round_()
    outside = (source_x < 0) | (source_x > width - 1) | (source_y < 0) | (source_y > height - 1)
    source = source_y.long().mul_(width).add_(source_x.long())
    source.add_(torch.arange(num_samples, device=device)[:, None, None], alpha=height * width)
    # One more pixel after the last: the fill, for all sources outside.
    background = torch.tensor([fill], dtype=images.dtype).to(device, non_blocking=True)
    pixels = torch.cat([images.permute(0, 2, 3, 1).reshape(-1, 3), background])
    found = pixels.index_select(0, source.masked_fill_(outside, len(pixels) - 1).view(-1))
    images.copy_(found.view(num_samples, height, width, 3).permute(0, 3, 1, 2))


@lru_cache(maxsize=16)
def _centred(length: int) -> torch.Tensor:
    """Return the (length,) pixel positions of a side, from its middle, in host memory. Shared; do not write to it.

    A shared tensor on a device would be filled on one stream and read on others.
    """
    return torch.linspace((1.0 - length) * 0.5, (length - 1.0) * 0.5, steps=length)


def _identity(num_samples: int) -> Float:
    return np.tile(np.array([[1.0, 0, 0], [0, 1.0, 0]]), (num_samples, 1, 1))
