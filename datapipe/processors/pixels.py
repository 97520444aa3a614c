"""Pixels of images as models of transformers take them: resized, cut and normalised, equal to its processors bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.errors import DependencyError, OptionError

Filter = Literal["bilinear", "bicubic", "lanczos"]
_AT_ONCE = 1 << 16  # numbers that are made at once, so that they are in a core's cache
_FILTERS: dict[int, Filter] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # by Pillow's numbers


@dataclass(frozen=True, slots=True)
class Pixels:
    """How an image is resized, and how its levels of 0 to 255 become a model's numbers."""

    filter: Filter
    mean: tuple[float, ...]  # (3,) by channel, of levels of 0 to 1
    std: tuple[float, ...]  # (3,)
    scale: float  # 1 / 255

    @classmethod
    def of_config(cls, config: Mapping[str, Any], where: str, *, default: Filter) -> Pixels:
        """Return what a `preprocessor_config.json` says. `default`: the filter, where it names none.

        Raises OptionError for one that resizes or normalises otherwise.
        """
        number = config.get("resample")
        if number is not None and number not in _FILTERS:
            raise OptionError(f"{where}: resample is {number!r:.40}; images are resized by {', '.join(_FILTERS.values())}")
        wrong = [name for name in ("do_rescale", "do_normalize") if config.get(name) is False]
        mean, std = (_three_numbers(config.get(name)) for name in ("image_mean", "image_std"))
        scale = config.get("rescale_factor", 1 / 255)
        if wrong or not mean or not std or not _is_number(scale) or scale <= 0:
            what = f"{wrong[0]} is false" if wrong else "no image_mean and image_std of three channels"
            raise OptionError(f"{where}: {what}; images of such a model are not processed here: pass a processor of your own")
        return cls(default if number is None else _FILTERS[number], mean, std, float(scale))

    def resized(self, pixels: NDArray[np.uint8] | torch.Tensor, height: int, width: int) -> torch.Tensor:
        """Return (3, height, width) uint8 of an image, (h, w, 3) or a tensor of (3, h, w), antialiased, as by torchvision.

        Raises DependencyError for a filter that this torch has not.
        """
        if isinstance(pixels, torch.Tensor):
            image = pixels[None]
        else:
            own = pixels if pixels.flags.writeable else pixels.copy()  # torch warns of others
            image = torch.from_numpy(own)[None].permute(0, 3, 1, 2)  # by its strides torch knows that channels come last
        if image.shape[2:] == (height, width):
            return image[0]
        try:
            return torch.nn.functional.interpolate(image, (height, width), mode=self.filter, antialias=True)[0]
        except (NotImplementedError, ValueError) as exc:
            if self.filter == "lanczos":
                raise DependencyError(f"torch {torch.__version__} has no Lanczos filter: pip install 'torch>=2.13'") from exc
            raise

    def values(self, units: torch.Tensor, out: torch.Tensor | None = None, *, times: int = 1) -> torch.Tensor:
        """Return float32 of (units, ...) uint8, whose channels come first in each unit: (units, 3, times, ...) if `times` > 1.

        `out`: contiguous memory for them.
        """
        mean, std = ((torch.tensor(one, device=units.device) * (1.0 / self.scale)).view(3, 1) for one in (self.mean, self.std))
        each = math.prod(units.shape[1:]) // 3
        flat = units.reshape(len(units), 3, each)
        if out is None:
            out = torch.empty((len(units), 3 * times * each), device=units.device)
        repeated = out.view(len(units), 3, times, each)
        at_once = max(1, _AT_ONCE // (3 * each) if units.device.type == "cpu" else len(flat))
        for first in range(0, len(flat), at_once):
            some = flat[first : first + at_once].to(torch.float32)
            repeated[first : first + at_once] = some.sub_(mean).div_(std)[:, :, None]
        return out


def _three_numbers(value: Any) -> tuple[float, ...]:
    are_three = isinstance(value, (list, tuple)) and len(value) == 3 and all(map(_is_number, value))
    return tuple(map(float, value)) if are_three else ()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
