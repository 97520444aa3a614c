"""Posterize, solarize, autocontrast and equalize of uint8 images (m, 3, h, w), in place."""

from __future__ import annotations

import torch

from datapipe.transforms.pixels.planar import to_planes


def posterize(images: torch.Tensor, bits: torch.Tensor) -> None:
    """Keep the `bits` (m, 1, 1, 1; 0 to 8) highest bits."""
    shift = 8 - bits
    images.bitwise_and_(((255 >> shift) << shift).to(torch.uint8))


def solarize(images: torch.Tensor, threshold: torch.Tensor) -> None:
    """Invert values of at least `threshold` (m, 1, 1, 1; 0 to 255, may be fractional)."""
    lowest = threshold.ceil().clamp(max=255).to(torch.uint8)
    torch.where(images >= lowest, ~images, images, out=images)


def autocontrast(images: torch.Tensor) -> None:
    """Stretch each channel to 0..255; a channel of a single value does not change."""
    planes = to_planes(images)
    lowest, highest = planes.amin((2, 3), keepdim=True), planes.amax((2, 3), keepdim=True)
    flat = highest == lowest
    lowest.masked_fill_(flat, 0)
    scale = highest.sub_(lowest).mul_(1.0 / 255).masked_fill_(flat, 1)
    images.copy_(planes.sub_(lowest).div_(scale).clamp_(0, 255))


def equalize(images: torch.Tensor) -> None:
    """Equalize each channel's histogram in whole numbers, like PIL's ImageOps.equalize."""
    num_samples, _, height, width = images.shape
    values = images.reshape(num_samples, 3, height * width).long()
    counts = torch.zeros((num_samples, 3, 256), dtype=torch.long, device=images.device)
    counts.scatter_add_(2, values, torch.ones(1, dtype=torch.long, device=images.device).expand_as(values))
    below = counts.cumsum(2)
    brightest = below.argmax(2, keepdim=True)  # the first value at which all pixels are counted
    step = (height * width - counts.gather(2, brightest)) // 255
    table = (below - counts + step // 2) // step.clamp(min=1)  # from the pixels darker than the value
    unchanged = torch.arange(256, device=images.device).expand_as(table)
    table = torch.where(step > 0, table.clamp_(max=255), unchanged).to(torch.uint8)
    images.copy_(table.gather(2, values).view(num_samples, 3, height, width))
