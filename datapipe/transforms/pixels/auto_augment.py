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
from datapipe.transforms.pixels import adjust, tone
from datapipe.transforms.pixels.planar import from_planes, groups, on_rows, to_planes
from datapipe.transforms.pixels.warp import rotation_matrix, shear_matrix, translation_matrix, warp
from datapipe.transforms.protocols import Locality, Params

Float = NDArray[np.float64]

# In torchvision's order. A choice is an index into this tuple.
OPERATIONS = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
    "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip
_SIGNED = np.array([1 <= number <= 9 for number in range(len(OPERATIONS))])


@dataclass(frozen=True, repr=False)
class RandAugment:
    """Apply `num_ops` of fourteen operations, each chosen at random, all at strength `magnitude` of `num_magnitude_bins`.

    Sampling is nearest-neighbour; pixels from outside the image are `fill` (None is black). uint8 images only.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill | None = None

    locality: ClassVar[Locality] = Locality.PLACE
    moves_pixels: ClassVar[bool] = True  # some of the operations do

    def __post_init__(self) -> None:
        if not is_count(self.num_ops) and self.num_ops != 0:
            raise refusal(self, "num_ops", self.num_ops, "it must be an int of at least 0")
        _check_bins(self, self.num_magnitude_bins)
        if not isinstance(self.magnitude, int) or not 0 <= self.magnitude < self.num_magnitude_bins:
            raise refusal(self, "magnitude", self.magnitude, f"it must be an int from 0 to {self.num_magnitude_bins - 1}")
        _check_sampling(self, self.interpolation, self.fill)

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return choice (n, num_ops), indices into OPERATIONS, and magnitude (n, num_ops)."""
        uniform = draws.uniform(operation, 2 * self.num_ops).reshape(len(draws), self.num_ops, 2)
        choice = (uniform[:, :, 0] * len(OPERATIONS)).astype(np.int64)
        magnitude = _rand_augment_table(self.num_magnitude_bins, *size)[choice, self.magnitude]
        return {"choice": choice, "magnitude": _signed(magnitude, choice, uniform[:, :, 1])}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        return _augment(images, params, self.fill or (0, 0, 0))

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return check_uint8(self, dtype)


@dataclass(frozen=True, repr=False)
class TrivialAugmentWide:
    """Apply one of fourteen operations, chosen at random, at a random one of `num_magnitude_bins` strengths.

    Sampling is nearest-neighbour; pixels from outside the image are `fill` (None is black). uint8 images only.
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Fill | None = None

    locality: ClassVar[Locality] = Locality.PLACE
    moves_pixels: ClassVar[bool] = True  # some of the operations do

    def __post_init__(self) -> None:
        _check_bins(self, self.num_magnitude_bins)
        _check_sampling(self, self.interpolation, self.fill)

    __repr__ = source_repr

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return choice (n, 1), indices into OPERATIONS, and magnitude (n, 1)."""
        uniform = draws.uniform(operation, 3)
        choice = (uniform[:, :1] * len(OPERATIONS)).astype(np.int64)
        strength = (uniform[:, 1:2] * self.num_magnitude_bins).astype(np.int64)
        magnitude = _trivial_augment_table(self.num_magnitude_bins)[choice, strength]
        return {"choice": choice, "magnitude": _signed(magnitude, choice, uniform[:, 2:])}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        return _augment(images, params, self.fill or (0, 0, 0))

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        return check_uint8(self, dtype)


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
        on_rows(images, np.arange(len(images)), tone.posterize, magnitude.astype(np.int64))
    elif name == "Solarize":
        on_rows(images, np.arange(len(images)), tone.solarize, 255.0 * magnitude)
    elif name == "AutoContrast":
        tone.autocontrast(images)
    elif name == "Equalize":
        tone.equalize(images)


_ON_PLANES: dict[str, Callable[[torch.Tensor, torch.Tensor, float], None]] = {
    "Brightness": adjust.adjust_brightness,
    "Color": adjust.adjust_saturation,
    "Contrast": adjust.adjust_contrast,
    "Sharpness": adjust.adjust_sharpness,
}


def _augment(images: torch.Tensor, params: Params, fill: Fill) -> torch.Tensor:
    choice, magnitude = params["choice"], params["magnitude"].astype(np.float64)
    for rows in groups(images):
        for turn in range(choice.shape[1]):
            for number in np.unique(choice[rows, turn]).tolist():
                chosen = np.flatnonzero(choice[rows, turn] == number)
                strengths = magnitude[rows, turn][chosen]
                name = OPERATIONS[number]
                on_rows(images[rows], chosen, lambda some, name=name, by=strengths: apply_operation(some, name, by, fill))
    return images


def _signed(magnitude: Float, choice: NDArray[np.int64], uniform: Float) -> Float:
    return np.where(_SIGNED[choice] & (uniform <= 0.5), -magnitude, magnitude)


# The tables are computed in torch's float32, as torchvision's are: where a magnitude is truncated to whole pixels or
# bits, the last digit matters.


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
    rows = [torch.linspace(0.0, end, num_bins) for end in ends]
    lost = torch.arange(num_bins) / ((num_bins - 1) / bits) if num_bins > 1 else torch.zeros(1)
    rows.append((8 - lost).round())
    rows.append(torch.linspace(1.0, 0.0, num_bins))
    rows += [torch.zeros(num_bins)] * 2
    return torch.stack(rows).double().numpy()


def _check_bins(owner: object, num_bins: object) -> None:
    if not is_count(num_bins):
        raise refusal(owner, "num_magnitude_bins", num_bins, "it must be a positive int")


def _check_sampling(owner: object, interpolation: object, fill: object) -> None:
    if getattr(interpolation, "value", interpolation) not in ("nearest", 0):  # 0: PIL's constant
        raise refusal(owner, "interpolation", interpolation, "only 'nearest' is available; drop the argument")
    object.__setattr__(owner, "interpolation", "nearest")
    object.__setattr__(owner, "fill", None if fill is None else check_fill(owner, fill))
