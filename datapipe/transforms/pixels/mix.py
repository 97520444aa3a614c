"""MixUp and CutMix: blend each sample of a batch with the one before it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.options import is_count, is_number, refusal, source_repr
from datapipe.transforms.protocols import Params


@dataclass(frozen=True, kw_only=True, repr=False)
class MixUp:
    """Blend images and labels: lam of the sample, 1 - lam of the one before it, lam from Beta(alpha, alpha).

    >>> T.MixUp(num_classes=1000, alpha=0.2)

    One lam per batch. Floating point images only; labels become (b, num_classes) float32.
    """

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _check_mix(self, self.alpha, self.num_classes)

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return lam (1,)."""
        return {"lam": np.array([symmetric_beta(self.alpha, _stream(draws, operation))])}

    def apply(self, images: torch.Tensor, labels: torch.Tensor, params: Params, /) -> tuple[torch.Tensor, torch.Tensor]:
        lam = float(params["lam"][0])
        before = _before(images).mul_(1.0 - lam)
        return images.mul_(lam).add_(before), _mix_labels(self, labels, self.num_classes, lam)

    def check_dtype(self, dtype: torch.dtype, /) -> None:
        """Raise OptionError for images that cannot be blended."""
        if not dtype.is_floating_point:
            raise OptionError(f"{self!r} blends images, which needs floating point; add ToDtype(torch.float32, scale=True)")


@dataclass(frozen=True, kw_only=True, repr=False)
class CutMix:
    """Paste a box of the previous sample into each image; labels are blended by the area that remains.

    >>> T.CutMix(num_classes=1000, alpha=1.0)

    One box per batch, its area about 1 - lam of the image, lam from Beta(alpha, alpha), its centre uniform, clipped at the
    edges. Labels become (b, num_classes) float32.
    """

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _check_mix(self, self.alpha, self.num_classes)

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return box (1, 4), top, left, height, width, and lam (1,), the share of the image that remains."""
        stream = _stream(draws, operation)
        height, width = size
        centre_x, centre_y = int(next(stream) * width), int(next(stream) * height)
        half = 0.5 * math.sqrt(1.0 - symmetric_beta(self.alpha, stream))
        half_width, half_height = int(half * width), int(half * height)
        left, right = max(centre_x - half_width, 0), min(centre_x + half_width, width)
        top, bottom = max(centre_y - half_height, 0), min(centre_y + half_height, height)
        lam = 1.0 - (right - left) * (bottom - top) / (width * height)
        return {"box": np.array([[top, left, bottom - top, right - left]], np.int64), "lam": np.array([lam])}

    def apply(self, images: torch.Tensor, labels: torch.Tensor, params: Params, /) -> tuple[torch.Tensor, torch.Tensor]:
        top, left, height, width = params["box"][0].tolist()
        pasted = images[:, :, top : top + height, left : left + width]
        pasted.copy_(_before(pasted))
        return images, _mix_labels(self, labels, self.num_classes, float(params["lam"][0]))


def symmetric_beta(alpha: float, uniform: Iterator[float]) -> float:
    """Return a number from Beta(alpha, alpha), as a function of the uniform numbers in [0, 1) that it consumes.

    It is G1 / (G1 + G2) with gamma variates in logarithms, which stay finite for the smallest alpha.
    """
    difference = _log_gamma_variate(alpha, uniform) - _log_gamma_variate(alpha, uniform)
    return 1.0 / (1.0 + math.exp(-difference)) if difference > -700 else 0.0


def _log_gamma_variate(shape: float, uniform: Iterator[float]) -> float:
    """Return the logarithm of a gamma variate: Marsaglia and Tsang, ACM TOMS 26 (2000), with their boost for shape < 1."""
    if shape < 1:
        return _log_gamma_variate(shape + 1, uniform) + math.log(1.0 - next(uniform)) / shape
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        normal = math.sqrt(-2 * math.log(1.0 - next(uniform))) * math.cos(2 * math.pi * next(uniform))
        v = (1 + c * normal) ** 3
        if v > 0 and math.log(1.0 - next(uniform)) < 0.5 * normal * normal + d - d * v + d * math.log(v):
            return math.log(d * v)


def _stream(draws: Draws, operation: int) -> Iterator[float]:
    """Yield the batch's uniform numbers one by one, as many as needed."""
    count, done = 16, 0
    while True:
        fresh: list[float] = draws.uniform(operation, count)[0, done:].tolist()
        yield from fresh
        done, count = count, 2 * count


def _mix_labels(owner: object, labels: torch.Tensor, num_classes: int | None, lam: float) -> torch.Tensor:
    assert num_classes is not None
    if labels.ndim == 1:
        if labels.is_cpu and len(labels) and (int(labels.max()) >= num_classes or int(labels.min()) < 0):
            raise OptionError(
                f"{owner!r}: labels run from {int(labels.min())} to {int(labels.max())}; "
                f"with num_classes={num_classes} they must lie between 0 and {num_classes - 1}"
            )
        shares = torch.zeros((len(labels), num_classes), device=labels.device).scatter_(1, labels[:, None], 1.0)
    else:  # already mixed
        shares = labels
    return _before(shares).mul_(1.0 - lam).add_(shares, alpha=lam)


def _before(rows: torch.Tensor) -> torch.Tensor:
    """Return a copy in which each row is the previous one, and the first is the last; in the same memory format.

    Unlike `rows.roll(1, 0)`, which turns a CUDA tensor in channels_last into planes of channels and so costs one more copy.
    """
    return torch.cat([rows[-1:], rows[:-1]])


def _check_mix(owner: object, alpha: object, num_classes: object) -> None:
    if not is_number(alpha) or alpha <= 0:  # type: ignore[operator]
        raise refusal(owner, "alpha", alpha, "it must be a number greater than 0")
    if not is_count(num_classes):
        raise refusal(owner, "num_classes", num_classes, "labels are class numbers here; say how many classes there are")
