"""RandomErasing: overwrite a random box of each image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.errors import OptionError
from datapipe.order.draws import Draws, log_uniform, mix64
from datapipe.transforms.options import Range, check_probability, check_range, is_number, refusal, source_repr
from datapipe.transforms.protocols import Locality, Params

_NUM_ATTEMPTS = 10
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW_HALF = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, repr=False)
class RandomErasing:
    """Overwrite a box of random area and aspect ratio (height / width) with probability `p`.

    >>> T.RandomErasing(p=0.25, value="random")

    `value`: one number, one per channel, or "random" for normally distributed noise per pixel and channel (floating point
    images only). As in torchvision, if none of ten boxes is smaller than the image in both directions, nothing is erased.
    `inplace` has no effect.
    """

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: float | tuple[float, float, float] | str = 0.0
    inplace: bool = False

    locality: ClassVar[Locality] = Locality.PLACE

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | str = 0.0,
        inplace: bool = False,
    ) -> None:
        put = object.__setattr__
        put(self, "p", check_probability(self, p))
        put(self, "scale", check_range(self, "scale", scale, least=0, most=1))
        put(self, "ratio", check_range(self, "ratio", ratio, least=0))
        if self.ratio[0] == 0:
            raise refusal(self, "ratio", ratio, "both must be greater than 0")
        put(self, "value", _check_value(self, value))
        put(self, "inplace", inplace)

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return box (n, 4) top, left, height, width, with height 0 where nothing is erased, and noise (n,) uint64 keys."""
        words = draws.words(operation, 2 + 4 * _NUM_ATTEMPTS)
        uniform = (words >> np.uint64(11)).astype(np.float64) * (1.0 / (1 << 53))
        tries = uniform[:, 2:].reshape(len(draws), _NUM_ATTEMPTS, 4)
        image_height, image_width = size
        area = image_height * image_width * (self.scale[0] + (self.scale[1] - self.scale[0]) * tries[:, :, 0])
        ratio = log_uniform(tries[:, :, 1], *self.ratio)
        height, width = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        fits = (height < image_height) & (width < image_width)
        first = np.arange(len(draws)), fits.argmax(axis=1)
        box = np.empty((len(draws), 4), np.int64)
        box[:, 2], box[:, 3] = height[first], width[first]
        box[:, :2] = tries[first][:, 2:] * (np.array(size) - box[:, 2:] + 1)
        box[(uniform[:, 0] >= self.p) | ~fits[first]] = 0
        return {"box": box, "noise": words[:, 1]}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        fill = self.value if isinstance(self.value, tuple) else None
        if not images.is_cpu and self.value != "random":
            values = torch.tensor(fill or (self.value,) * 3, dtype=images.dtype).to(images.device, non_blocking=True)
            return images.copy_(torch.where(_covered(params["box"].astype(np.int64), images), values.view(1, 3, 1, 1), images))
        for row, (top, left, height, width) in enumerate(params["box"].tolist()):
            if height == 0 or width == 0:
                continue
            erased = images[row, :, top : top + height, left : left + width]
            if self.value == "random":
                noise = torch.from_numpy(_normals(params["noise"][row], 3 * height * width)).view(height, width, 3)
                erased.copy_(noise.permute(2, 0, 1).to(images.device, non_blocking=True))
            elif fill is None:
                erased.fill_(self.value)  # type: ignore[arg-type]
            else:
                for channel, value in enumerate(fill):
                    erased[channel].fill_(value)
        return images

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        if dtype == torch.uint8:
            if self.value == "random":
                raise OptionError(f"{self!r}: value='random' is noise around 0, which uint8 cannot hold; put ToDtype before it")
            values = self.value if isinstance(self.value, tuple) else (self.value,)
            if any(not 0 <= float(value) < 256 for value in values):
                raise OptionError(f"{self!r}: uint8 images hold 0 to 255; put ToDtype before it, or change value")
        return dtype


def _covered(box: NDArray[np.int64], images: torch.Tensor) -> torch.Tensor:
    """Return (n, 1, h, w) True within each image's box: one kernel for the whole batch instead of one per image."""
    top, left, height, width = torch.from_numpy(box).to(images.device, non_blocking=True).T.view(4, -1, 1, 1, 1)
    y = torch.arange(images.shape[2], device=images.device).view(1, 1, -1, 1)
    x = torch.arange(images.shape[3], device=images.device).view(1, 1, 1, -1)
    covered: torch.Tensor = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
    return covered


def _normals(key: np.uint64, count: int) -> NDArray[np.float32]:
    """Return (count,) standard normal numbers as a function of the key: Box and Muller (1958) on counted, hashed words."""
    words = mix64(np.arange(1, count // 2 + 2, dtype=np.uint64) * _GOLDEN + key)
    radius = np.sqrt(-2 * np.log(((words >> np.uint64(32)).astype(np.float32) + 0.5) * np.float32(2.0**-32)))
    angle = (words & _LOW_HALF).astype(np.float32) * np.float32(2.0**-32 * 2 * math.pi)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _check_value(owner: object, value: object) -> float | tuple[float, float, float] | str:
    if value == "random":
        return "random"
    if is_number(value):
        return float(value)  # type: ignore[arg-type]
    if isinstance(value, (list, tuple)) and all(map(is_number, value)):
        if len(value) == 1:
            return float(value[0])
        if len(value) == 3:
            return (float(value[0]), float(value[1]), float(value[2]))
    raise refusal(owner, "value", value, "it must be a number, three of them for red, green and blue, or 'random'")
