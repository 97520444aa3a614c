"""Call the user's own transforms with one image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from datapipe.transforms.lowering import is_albumentations

RestInput = Literal["pil", "tensor"]


def call_each(transforms: Sequence[Callable[[Any], Any]], image: torch.Tensor, *, first_takes: RestInput) -> Any:
    """Return the result of calling the transforms in order on an (h, w, 3) image.

    The first gets a PIL image (`image` must be uint8) or a contiguous (3, h, w) tensor of its dtype, each further one the
    result of the one before. Those of albumentations get and return (h, w, c) arrays. Do not use `image` elsewhere: the
    transforms may get its memory. Raises what they raise.
    """
    value: Any = _tensor(image) if first_takes == "tensor" else image.numpy()
    if first_takes == "pil" and not is_albumentations(transforms[0]):
        value = Image.fromarray(value)
    for transform in transforms:
        if is_albumentations(transform):
            value = transform(image=_array(value))["image"]  # type: ignore[call-arg]
        else:
            value = transform(value)
    return value


def _tensor(image: torch.Tensor) -> torch.Tensor:
    return image.permute(2, 0, 1).contiguous()


def _array(value: Any) -> Any:
    """Return an image in the form that albumentations expects: (h, w, c), contiguous."""
    if isinstance(value, torch.Tensor):
        return np.ascontiguousarray(value.permute(1, 2, 0).numpy())
    return np.array(value) if isinstance(value, Image.Image) else value
