"""The form of a comparison with torchvision, the distances that are allowed, and how datapipe makes an image of its own."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe import transforms as T
from datapipe.order.draws import Draws
from datapipe.transforms.execute import cut_through, row_cuts
from datapipe.transforms.protocols import PixelOp

Pixels = NDArray[np.uint8]  # (h, w, 3)
Pair = tuple[torch.Tensor, torch.Tensor]  # datapipe's and torchvision's, in units of 1 / 255
SIDE = 224


@dataclass(frozen=True)
class Bound:
    """The greatest differences allowed, of 255: of any value, of 99.9 % of them, on average."""

    largest: float
    p999: float
    mean: float


@dataclass(frozen=True)
class Case:
    """One transform against one of torchvision's ways to do it."""

    name: str
    against: str  # "tensor" or "PIL"
    bound: Bound
    compare: Callable[[Pixels, int], Pair]


EXACT = Bound(0, 0, 0)
NEARLY = Bound(0.001, 0.001, 0.001)  # other roundings of the same float32 arithmetic
ONE_STEP = Bound(1, 1, 0.02)  # uint8 steps: the fraction cut off lies next to a whole number
FLOAT_RESIZE = Bound(1, 1, 0.3)  # rounding integer arithmetic against rounding float32 arithmetic
PIL_RESIZE = Bound(2, 1, 0.1)  # the distance of torch's own integer resize: one step, in one value of a million two
PIL_CUBIC = Bound(24, 2, 0.4)  # the same; where an overshoot is cut off between the two directions, their order counts
PIL_STEP = Bound(1, 1, 1)  # PIL's own rounding of luma and blends
THRESHOLD = Bound(255, 255, 3)  # one of 256 values lies at the threshold: torchvision compares it in two precisions
PIL_HUE = Bound(24, 20, 4)  # PIL turns hues in 8 bits
NEIGHBOUR = Bound(255, 0, 0.01)  # a pixel in a thousand at most takes the other of two equally near neighbours
PIL_NEIGHBOUR = Bound(255, 64, 0.05)  # the same of PIL, more often


def torchvision_resizes() -> str:
    """Return "integers" or "float32": how torchvision resizes uint8 tensors bilinearly here; datapipe always takes integers."""
    has_kernel = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")
    return "integers" if has_kernel else "float32"


def draws_of(number: int) -> Draws:
    return Draws(0, 0, np.array([number]))


def joined(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.cat([images.flatten(), labels.flatten()])


def as_tensor(photo: Pixels) -> torch.Tensor:
    return torch.from_numpy(photo).permute(2, 0, 1)


def square(photo: Pixels) -> torch.Tensor:
    """The middle of the photograph, (3, 224, 224) uint8."""
    top, left = (photo.shape[0] - SIDE) // 2, (photo.shape[1] - SIDE) // 2
    return as_tensor(photo[top : top + SIDE, left : left + SIDE].copy())


def box_of(crop: T.RandomResizedCrop, photo: Pixels, number: int) -> list[int]:
    box: list[int] = crop.boxes(np.array([photo.shape[:2]]), draws_of(number), 0)[0].tolist()
    return box


def cut(transforms: Any, photo: Pixels, number: int) -> torch.Tensor:
    """Cut the photograph as a CPU backend would, decoding the region only."""
    chain = T.Recipe.of(transforms).draw_cuts(draws_of(number), np.array([photo.shape[:2]]))
    top, left, height, width = chain[0].region[0].tolist()
    out = torch.empty((*chain[-1].window[0, 2:].tolist(), 3), dtype=torch.uint8)
    cut_through(photo[top : top + height, left : left + width], [row_cuts(cuts)[0] for cuts in chain], out.numpy())
    return out.permute(2, 0, 1)


def pixels(op: PixelOp, image: torch.Tensor, number: int) -> torch.Tensor:
    """One pixel operation on one image (3, h, w), in the memory format of blocks."""
    block = image.unsqueeze(0).clone(memory_format=torch.channels_last)
    return op.apply(block, op.draw(draws_of(number), 0, (image.shape[1], image.shape[2])))[0]


def run(recipe: T.Recipe, image: torch.Tensor, number: int) -> torch.Tensor:
    block = image.permute(1, 2, 0).unsqueeze(0).contiguous()
    out = torch.empty(block.shape, dtype=recipe.output_dtype)
    recipe.run_pixels(block, draws_of(number), out)
    return out[0].permute(2, 0, 1)
