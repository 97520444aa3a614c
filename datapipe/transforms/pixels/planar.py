"""The working form of colour arithmetic: float32 planes, in groups that suit the device.

Blocks are NHWC uint8 or floating point. Arithmetic on one channel of them is strided and slow, and torchvision's integer
images pass through float32 at every step anyway. So operations convert once to planes, (m, 3, h, w) contiguous float32,
work on those in place, and convert back once. uint8 values stay whole numbers from 0 to 255 in between, so rounding does
not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Planes = torch.Tensor  # (m, 3, h, w) float32 (float64 for float64 images), contiguous


def groups(images: torch.Tensor) -> Iterator[slice]:
    """Yield rows to work on together: one by one on a CPU, where an image fits the cache; all at once on a GPU."""
    if not images.is_cpu:
        yield slice(0, len(images))
    else:
        for row in range(len(images)):
            yield slice(row, row + 1)


def top_value(dtype: torch.dtype) -> float:
    """Return the brightest value: 255 for integer images, 1 for floating point images."""
    return 1.0 if dtype.is_floating_point else 255.0


def to_planes(images: torch.Tensor) -> Planes:
    """Return a planar copy of (m, 3, h, w) images in any memory layout."""
    dtype = torch.float64 if images.dtype == torch.float64 else torch.float32
    planes = torch.empty(images.shape, dtype=dtype, device=images.device)
    return planes.copy_(images)


def from_planes(planes: Planes, images: torch.Tensor) -> None:
    """Write the planes back to `images`, truncated if those are integers."""
    flat = planes.to(images.dtype)
    if not images.is_cpu:
        images.copy_(flat)
        return
    for channel in range(3):  # three strided copies; torch's own transposing copy takes twice as long
        images[:, channel].copy_(flat[:, channel])


def on_rows(images: torch.Tensor, rows: NDArray[np.int64], operation: Callable[..., Any], *params: NDArray[np.generic]) -> None:
    """Call `operation(selected, *params)`, which works in place, on the given rows of `images`.

    `params`: one value per row of `rows`; `operation` gets them as tensors (len(rows), 1, 1, 1) on the images' device,
    floating point ones in float32. Never synchronises a GPU.
    """
    if len(rows) == 0:
        return
    moved = [_per_sample(param, images.device) for param in params]
    if len(rows) == len(images):
        operation(images, *moved)
        return
    index = torch.from_numpy(rows).to(images.device, non_blocking=True)
    selected = images.index_select(0, index)
    operation(selected, *moved)
    images.index_copy_(0, index, selected)


def _per_sample(param: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    values = param.astype(np.float32) if param.dtype.kind == "f" else param
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True).view(-1, 1, 1, 1)
