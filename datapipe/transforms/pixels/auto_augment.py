"""RandAugment and TrivialAugmentWide: randomly chosen operations of random strength, on uint8 images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.order.draws import Draws
from datapipe.transforms.options import Fill, check_fill, check_uint8, is_count, refusal, source_repr
from datapipe.transforms.pixels import adjust
from datapipe.transforms.pixels.planar import from_planes, groups, on_rows, to_planes
from datapipe.transforms.protocols import Locality, Params

Float = NDArray[np.float64]

# In torchvision's order. A choice is an index into this tuple.
OPERATIONS = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
    "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip
_SIGNED = np.array([1 <= number <= 9 for number in range(len(OPERATIONS))])


class _AutoAugment:
    """Shared part of both: chosen operations, each applied to the samples that drew it."""

    num_magnitude_bins: int
    interpolation: str
    fill: Fill | None

    locality: ClassVar[Locality] = Locality.PLACE
    moves_pixels: ClassVar[bool] = True  # some of the operations do

    def __post_init__(self) -> None:
        if not is_count(self.num_magnitude_bins):
            raise refusal(self, "num_magnitude_bins", self.num_magnitude_bins, "it must be a positive int")
        if getattr(self.interpolation, "value", self.interpolation) not in ("nearest", 0):  # 0: PIL's constant
            raise refusal(self, "interpolation", self.interpolation, "only 'nearest' is available; drop the argument")
        object.__setattr__(self, "interpolation", "nearest")
        object.__setattr__(self, "fill", None if self.fill is None else check_fill(self, self.fill))

    __repr__ = source_repr

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        choice, magnitude = params["choice"], params["magnitude"].astype(np.float64)
        fill = self.fill or (0, 0, 0)
        for rows in groups(images):
            for turn in range(choice.shape[1]):
                for number in np.unique(choice[rows, turn]).tolist():
                    chosen = np.flatnonzero(choice[rows, turn] == number)
                    strengths = magnitude[rows, turn][chosen]
                    name = OPERATIONS[number]
                    on_rows(images[rows], chosen, lambda some, name=name, by=strengths: apply_operation(some, name, by, fill))
        return images

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return check_uint8(self, dtype)


@dataclass(frozen=True, repr=False)
class RandAugment(_AutoAugment):
    """Apply `num_ops` of fourteen operations, each chosen at random, all at strength `magnitude` of `num_magnitude_bins`.

    >>> T.RandAugment(num_ops=2, magnitude=9)

    Sampling is nearest-neighbour; pixels from outside the image are `fill` (None is black). uint8 images only.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        if not is_count(self.num_ops) and self.num_ops != 0:
            raise refusal(self, "num_ops", self.num_ops, "it must be an int of at least 0")
        super().__post_init__()
        if not isinstance(self.magnitude, int) or not 0 <= self.magnitude < self.num_magnitude_bins:
            raise refusal(self, "magnitude", self.magnitude, f"it must be an int from 0 to {self.num_magnitude_bins - 1}")

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return choice (n, num_ops), indices into OPERATIONS, and magnitude (n, num_ops)."""
        uniform = draws.uniform(operation, 2 * self.num_ops).reshape(len(draws), self.num_ops, 2)
        choice = (uniform[:, :, 0] * len(OPERATIONS)).astype(np.int64)
        magnitude = _rand_augment_table(self.num_magnitude_bins, *size)[choice, self.magnitude]
        return {"choice": choice, "magnitude": _signed(magnitude, choice, uniform[:, :, 1])}


@dataclass(frozen=True, repr=False)
class TrivialAugmentWide(_AutoAugment):
    """Apply one of fourteen operations, chosen at random, at a random one of `num_magnitude_bins` strengths.

    >>> T.TrivialAugmentWide()

    Sampling is nearest-neighbour; pixels from outside the image are `fill` (None is black). uint8 images only.
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill | None = None

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return choice (n, 1), indices into OPERATIONS, and magnitude (n, 1)."""
        uniform = draws.uniform(operation, 3)
        choice = (uniform[:, :1] * len(OPERATIONS)).astype(np.int64)
        strength = (uniform[:, 1:2] * self.num_magnitude_bins).astype(np.int64)
        magnitude = _trivial_augment_table(self.num_magnitude_bins)[choice, strength]
        return {"choice": choice, "magnitude": _signed(magnitude, choice, uniform[:, 2:])}


def apply_operation(images: torch.Tensor, name: str, magnitude: Float, fill: Fill) -> None:
    """Apply one of OPERATIONS to uint8 images (m, 3, h, w) in place, with a magnitude (m,) for each."""
    size = (images.shape[2], images.shape[3])
    none = np.zeros(len(images))
    if name == "ShearX":
        warp(images, shear_matrix(magnitude, none, size), fill)
    elif name == "ShearY":
        warp(images, shear_matrix(none, magnitude, size), fill)
    elif name == "TranslateX":
        warp(images, translation_matrix(np.trunc(magnitude), none), fill)
    elif name == "TranslateY":
        warp(images, translation_matrix(none, np.trunc(magnitude)), fill)
    elif name == "Rotate":
        warp(images, rotation_matrix(magnitude), fill)
    elif name in _ON_PLANES:
        planes = to_planes(images)
        on_rows(planes, np.arange(len(images)), lambda some, factor: _ON_PLANES[name](some, factor, 255.0), 1.0 + magnitude)
        from_planes(planes, images)
    elif name == "Posterize":
        on_rows(images, np.arange(len(images)), adjust.posterize, magnitude.astype(np.int64))
    elif name == "Solarize":
        on_rows(images, np.arange(len(images)), adjust.solarize, 255.0 * magnitude)
    elif name == "AutoContrast":
        adjust.autocontrast(images)
    elif name == "Equalize":
        adjust.equalize(images)


_ON_PLANES: dict[str, Callable[[torch.Tensor, torch.Tensor, float], None]] = {
    "Brightness": adjust.adjust_brightness,
    "Color": adjust.adjust_saturation,
    "Contrast": adjust.adjust_contrast,
    "Sharpness": adjust.adjust_sharpness,
}


def _signed(magnitude: Float, choice: NDArray[np.int64], uniform: Float) -> Float:
    return np.where(_SIGNED[choice] & (uniform <= 0.5), -magnitude, magnitude)


# The tables have the float32 values of torchvision's: where a magnitude is truncated to whole pixels or bits, the last
# digit matters.


@lru_cache(maxsize=16)
def _rand_augment_table(num_bins: int, height: int, width: int) -> Float:
    """Return (14, num_bins) magnitudes."""
    return _table(num_bins, shear=0.3, right=150.0 / 331.0 * width, down=150.0 / 331.0 * height, degrees=30.0, factor=0.9, bits=4)


@lru_cache(maxsize=16)
def _trivial_augment_table(num_bins: int) -> Float:
    """Return (14, num_bins) magnitudes."""
    return _table(num_bins, shear=0.99, right=32.0, down=32.0, degrees=135.0, factor=0.99, bits=6)


def _table(num_bins: int, *, shear: float, right: float, down: float, degrees: float, factor: float, bits: int) -> Float:
    ends = [0, shear, shear, right, down, degrees, factor, factor, factor, factor]
    rows = [_linspace(0.0, end, num_bins) for end in ends]
    lost = np.arange(num_bins) / (max(num_bins - 1, 1) / bits)
    rows.append(np.rint(8 - lost))
    rows.append(_linspace(1.0, 0.0, num_bins))
    rows += [np.zeros(num_bins)] * 2
    return np.stack(rows)


def _linspace(start: float, end: float, num: int) -> Float:
    """Return what torch.linspace gives in float32 where the CPU fuses a multiplication and an addition, on every CPU."""
    # float64 holds the product exactly, and the sum is rounded to float32 once, as a fused one is.
    first, last = np.float32(start), np.float32(end)
    step = np.float64((last - first) / np.float32(max(num - 1, 1)))
    number = np.arange(num)
    upwards, downwards = first + step * number, last - step * (num - 1 - number)
    return np.where(number < max(num // 2, 1), upwards, downwards).astype(np.float32).astype(np.float64)


# -- shear, translation and rotation, with nearest-neighbour sampling, as torchvision's affine does them


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
