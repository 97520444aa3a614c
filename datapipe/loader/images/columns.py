"""Collate the values of one field: into one tensor if networks take one, else into a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.core.errors import OptionError

BoxesForm = Literal["list", "padded"]
NO_BOX = -1.0  # the label in padding rows of boxes


def column_of(spec: FieldSpec, values: list[Any], *, boxes: BoxesForm) -> Any:
    """Return the values of one field, as a batch has them.

    MASK (b, h, w), ARRAY (b, ...) and IMAGE (b, 3, h, w), in channels_last memory, are stacked; masks of which some are
    uint8 and some int32 become int32. BOXES are a list of (k, 5), or with `boxes="padded"` one (b, largest k, 5) whose
    padding rows are 0, 0, 0, 0, -1. Other kinds are lists. Raises OptionError if shapes or dtypes differ.
    """
    if spec.kind is FieldKind.BOXES and boxes == "padded":
        return _padded(values)
    stack = _STACKED.get(spec.kind)
    if stack is None:
        return values
    if not values:  # every sample of the batch was bad
        return torch.empty((0, *_EMPTY[spec.kind]), dtype=torch.uint8)
    shapes = {tuple(value.shape) for value in values}
    dtypes = {value.dtype for value in values}
    if len(shapes) > 1 or (len(dtypes) > 1 and spec.kind is not FieldKind.MASK):
        differ = shapes if len(shapes) > 1 else dtypes
        raise OptionError(
            f"field {spec.name!r} differs within a batch ({', '.join(map(str, sorted(differ, key=str)[:3]))}), so it cannot be "
            "stacked; pass a collate_fn, batch_size=1, or leave it out by fields="
        )
    return stack(values)


def _padded(values: list[torch.Tensor]) -> torch.Tensor:
    table = torch.zeros((len(values), max((len(value) for value in values), default=0), 5))
    table[:, :, 4] = NO_BOX
    for row, value in enumerate(values):
        table[row, : len(value)] = value
    return table


def _masks(values: list[torch.Tensor]) -> torch.Tensor:
    dtype = torch.int32 if any(value.dtype == torch.int32 for value in values) else values[0].dtype
    return torch.stack([value.to(dtype) for value in values])


def _images(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.from_numpy(np.stack([value.permute(1, 2, 0).numpy() for value in values])).permute(0, 3, 1, 2)


_STACKED: dict[FieldKind, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    FieldKind.MASK: _masks, FieldKind.ARRAY: torch.stack, FieldKind.IMAGE: _images,
}  # fmt: skip
_EMPTY: dict[FieldKind, tuple[int, ...]] = {FieldKind.MASK: (0, 0), FieldKind.ARRAY: (), FieldKind.IMAGE: (3, 0, 0)}
