"""Check that the images of a batch have one size, if only the images themselves tell their sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from datapipe.codecs.probe import checked_header
from datapipe.core.errors import DatapipeError, OptionError
from datapipe.fetch.files import Files
from datapipe.index.concat import AnyIndex
from datapipe.loader.images.batch_fields import IMAGE
from datapipe.transforms import Recipe

_LOOKED_AT = 16  # number of samples, spread over the dataset

Size = tuple[int, int]  # height, width in pixels

_REMEDY = "end the geometry with RandomResizedCrop, CenterCrop or Resize((h, w))"


def check_sizes(recipe: Recipe, stored_size: Size | None, *, index: AnyIndex, files: Files) -> None:
    """Raise OptionError if batches could not be made because images would differ in size.

    `stored_size`: that of all images, if the dataset knows it. Otherwise the headers of some are read, unless the recipe makes
    all images equal: if these leave the recipe in one size, the others are assumed to do so too; `stack` raises if not.
    """
    if recipe.output_size(stored_size) is not None:
        return
    left = {recipe.output_size(size): f"{where} is {_text(size)}" for size, where in _sizes_of_some(index, files)}
    if len(left) != 1:
        recipe.check_equal_sizes(None, such_as=" and ".join(list(left.values())[:2]))


def stack(images: Sequence[torch.Tensor], ids: NDArray[np.int64]) -> torch.Tensor:
    """Return (b, 3, h, w) of b images of that size. `ids`: those of the samples. Raises OptionError if they differ in size."""
    sizes = {(int(image.shape[1]), int(image.shape[2])): int(sample) for image, sample in zip(images, ids, strict=True)}
    if len(sizes) > 1:
        (size, first), (other_size, other) = list(sizes.items())[:2]
        found = f"sample {first} is {_text(size)}, sample {other} {_text(other_size)}"
        raise OptionError(f"the images of a batch differ in size: {found}; {_REMEDY}, or pass a collate_fn")
    return torch.stack(list(images))


def _sizes_of_some(index: AnyIndex, files: Files) -> list[tuple[Size, str]]:
    """Return the sizes of some stored images, and a description of each; bad images are left out."""
    found: list[tuple[Size, str]] = []
    if not len(index):
        return found
    ids = index.ids(np.unique(np.linspace(0, len(index) - 1, _LOOKED_AT, dtype=np.int64)))
    entries = index.look_up(ids, IMAGE)
    on_their_way = files.will_need(entries.extents)
    for row, sample in enumerate(ids.tolist()):
        try:
            header = checked_header(files.read(entries.extents, row))
        except DatapipeError:  # the policy for bad samples treats it when it is loaded
            continue
        found.append(((header.height, header.width), str(index.describe(sample))))
    del on_their_way
    return found


def _text(size: Size) -> str:
    return f"{size[0]} x {size[1]}"
