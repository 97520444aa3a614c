"""ColorJitter, drawn per sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from datapipe.order.draws import Draws
from datapipe.transforms.options import Range, check_range, is_number, refusal, source_repr
from datapipe.transforms.pixels import adjust
from datapipe.transforms.pixels.planar import from_planes, groups, on_rows, to_planes, top_value
from datapipe.transforms.protocols import Locality, Params

_ADJUSTMENTS: tuple[Callable[[torch.Tensor, torch.Tensor, float], None], ...] = (
    adjust.adjust_brightness,
    adjust.adjust_contrast,
    adjust.adjust_saturation,
    adjust.adjust_hue,
)


@dataclass(frozen=True, repr=False)
class ColorJitter:
    """Change brightness, contrast, saturation and hue by random factors, in a random order per sample.

    A number x stands for factors in [max(0, 1 - x), 1 + x], for hue in [-x, x] of the colour circle; a pair gives the bounds
    themselves. uint8 images, or floating point images within [0, 1].
    """

    brightness: Range | None = None
    contrast: Range | None = None
    saturation: Range | None = None
    hue: Range | None = None

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        for name, value in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation)):
            object.__setattr__(self, name, _check_factor(self, name, value))
        object.__setattr__(self, "hue", _check_factor(self, "hue", hue, middle=0.0, least=-0.5, most=0.5))

    __repr__ = source_repr

    @property
    def locality(self) -> Locality:
        return Locality.POINT if self.contrast is None else Locality.IMAGE

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return order (n, 4), permutations of 0 brightness, 1 contrast, 2 saturation, 3 hue, and factors (n, 4) for these."""
        uniform = draws.uniform(operation, 8)
        ranges = [(1.0, 1.0) if r is None else r for r in (self.brightness, self.contrast, self.saturation)]
        ranges.append(self.hue or (0.0, 0.0))
        low, high = np.array(ranges).T
        return {"order": uniform[:, :4].argsort(axis=1), "factors": low + (high - low) * uniform[:, 4:]}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        top = top_value(images.dtype)
        wanted = [r is not None for r in (self.brightness, self.contrast, self.saturation, self.hue)]
        if not any(wanted):
            return images
        for rows in groups(images):
            planes = to_planes(images[rows])
            order, factors = params["order"][rows], params["factors"][rows]
            for turn in range(4):
                for number, adjustment in enumerate(_ADJUSTMENTS):
                    if wanted[number]:
                        chosen = np.flatnonzero(order[:, turn] == number)
                        on_rows(planes, chosen, lambda some, f, adjust=adjustment: adjust(some, f, top), factors[chosen, number])
            from_planes(planes, images[rows])
        return images

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return dtype


def _check_factor(
    owner: object,
    argument: str,
    value: float | Sequence[float] | None,
    *,
    middle: float = 1.0,
    least: float = 0.0,
    most: float = math.inf,
) -> Range | None:
    """Return the bounds of a factor, of which `middle` changes nothing; None if it is always that."""
    if value is None:
        return None
    if is_number(value):
        if value < 0:  # type: ignore[operator]
            raise refusal(owner, argument, value, "a single number must be at least 0")
        value = (-value, value) if middle == 0 else (max(0.0, 1.0 - value), 1.0 + value)  # type: ignore[operator, assignment]
    bounds = check_range(owner, argument, value, least=least, most=most)
    return None if bounds == (middle, middle) else bounds
