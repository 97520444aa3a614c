"""RandomApply, RandomChoice and RandomOrder of pixel operations: choose and order operations per sample.

Each sample draws separately. An inner operation draws by its own number, made of the outer one's and its position, so it
draws the same whether or not it or any other operation is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms.options import check_probability, is_number, refusal, source_repr
from datapipe.transforms.protocols import Locality, Params, PixelOp

_PLACES = 1 << 20  # more than the transforms of any list
_FARTHEST = (Locality.PLACE, Locality.IMAGE, Locality.POINT)


class _Compound:
    """Shared part of compounds of pixel operations that keep the dtype."""

    transforms: tuple[PixelOp, ...]

    __repr__ = source_repr

    @property
    def locality(self) -> Locality:
        return min((getattr(op, "locality", Locality.PLACE) for op in self.transforms), key=_FARTHEST.index)

    @property
    def moves_pixels(self) -> bool:
        return any(getattr(op, "moves_pixels", False) for op in self.transforms)

    def output_dtype(self, dtype: torch.dtype, /) -> torch.dtype:
        for op in self.transforms:
            if op.output_dtype(dtype) != dtype:
                raise OptionError(f"{self!r}: {op!r} changes the dtype, which all images of a batch share; remove it")
        return dtype


@dataclass(frozen=True, repr=False)
class RandomApply(_Compound):
    """Apply all of `transforms`, in order, with probability `p`: pixel operations that keep the dtype.

    >>> T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    """

    transforms: tuple[PixelOp, ...]
    p: float = 0.5

    def __init__(self, transforms: Sequence[PixelOp], p: float = 0.5) -> None:
        object.__setattr__(self, "transforms", _check_operations(self, transforms))
        object.__setattr__(self, "p", check_probability(self, p))

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return chosen (n,) bool, and the parameters of each transform under its position and a dot."""
        return {"chosen": draws.uniform(operation, 1)[:, 0] < self.p, **_drawn(self.transforms, draws, operation, size)}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        rows = np.flatnonzero(params["chosen"])
        for place, op in enumerate(self.transforms):
            _apply_to(images, rows, op, _of_place(params, place))
        return images


@dataclass(frozen=True, repr=False)
class RandomChoice(_Compound):
    """Apply one of `transforms`, each with its share of `p` (None: equal shares): pixel operations that keep the dtype.

    >>> T.RandomChoice([T.RandomGrayscale(1.0), T.RandomSolarize(128, 1.0), T.GaussianBlur(9)])
    """

    transforms: tuple[PixelOp, ...]
    p: tuple[float, ...] | None = None

    def __init__(self, transforms: Sequence[PixelOp], p: Sequence[float] | None = None) -> None:
        object.__setattr__(self, "transforms", _check_operations(self, transforms))
        object.__setattr__(self, "p", None if p is None else _check_shares(self, p, len(self.transforms)))

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return choice (n,), positions in `transforms`, and the parameters of each transform under its position and a dot."""
        bounds = np.cumsum(self.p or [1.0] * len(self.transforms))
        choice = np.searchsorted(bounds, draws.uniform(operation, 1)[:, 0] * bounds[-1], side="right")
        return {"choice": choice, **_drawn(self.transforms, draws, operation, size)}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        for place, op in enumerate(self.transforms):
            _apply_to(images, np.flatnonzero(params["choice"] == place), op, _of_place(params, place))
        return images


@dataclass(frozen=True, repr=False)
class RandomOrder(_Compound):
    """Apply all of `transforms` in a random order per sample: pixel operations that keep the dtype.

    >>> T.RandomOrder([T.RandomInvert(), T.RandomGrayscale(0.5)])
    """

    transforms: tuple[PixelOp, ...]

    def __init__(self, transforms: Sequence[PixelOp]) -> None:
        object.__setattr__(self, "transforms", _check_operations(self, transforms))

    def draw(self, draws: Draws, operation: int, size: tuple[int, int], /) -> Params:
        """Return order (n, k), permutations of positions, and the parameters of each transform under its position and a dot."""
        order = draws.uniform(operation, len(self.transforms)).argsort(axis=1)
        return {"order": order, **_drawn(self.transforms, draws, operation, size)}

    def apply(self, images: torch.Tensor, params: Params, /) -> torch.Tensor:
        for turn in range(len(self.transforms)):
            for place, op in enumerate(self.transforms):
                _apply_to(images, np.flatnonzero(params["order"][:, turn] == place), op, _of_place(params, place))
        return images


def _drawn(ops: Sequence[PixelOp], draws: Draws, operation: int, size: tuple[int, int]) -> Params:
    drawn: dict[str, NDArray[np.generic]] = {}
    for place, op in enumerate(ops):
        params = op.draw(draws, (operation + 1) * _PLACES + place, size)
        drawn.update({f"{place}.{name}": values for name, values in params.items()})
    return drawn


def _of_place(params: Params, place: int) -> Params:
    prefix = f"{place}."
    return {name.removeprefix(prefix): values for name, values in params.items() if name.startswith(prefix)}


def _apply_to(images: torch.Tensor, rows: NDArray[np.int64], op: PixelOp, params: Params) -> None:
    """Replace the given rows of `images` (n, 3, h, w), NHWC in memory, by the result of `op`. Never synchronises."""
    if len(rows) == 0:
        return
    if len(rows) == len(images):
        made = op.apply(images, params)
        if made.data_ptr() != images.data_ptr():
            images.copy_(made)
        return
    nhwc, index = images.permute(0, 2, 3, 1), torch.from_numpy(rows).to(images.device, non_blocking=True)
    some = nhwc.index_select(0, index).permute(0, 3, 1, 2)
    made = op.apply(some, {name: values[rows] for name, values in params.items()})
    nhwc.index_copy_(0, index, made.permute(0, 2, 3, 1))


def _check_operations(owner: object, transforms: object) -> tuple[PixelOp, ...]:
    if not isinstance(transforms, Sequence) or not transforms:
        raise refusal(owner, "transforms", transforms, "it must be a list of at least one pixel operation")
    for op in transforms:
        if isinstance(op, type) or not isinstance(op, PixelOp):
            raise refusal(
                owner,
                "transforms",
                transforms,
                f"{op!r} is not a pixel operation; put crops, resizes and flips outside, before it",
            )
    return tuple(transforms)


def _check_shares(owner: object, p: object, count: int) -> tuple[float, ...]:
    if isinstance(p, Sequence) and len(p) == count and all(is_number(share) and share >= 0 for share in p) and sum(p) > 0:
        return tuple(float(share) for share in p)
    raise refusal(owner, "p", p, f"it must be {count} numbers of at least 0, one for each transform, not all 0")
