"""The cuts that the graph can execute: one per sample, of one form for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datapipe.core.errors import OptionError
from datapipe.order.draws import Draws
from datapipe.transforms import Recipe
from datapipe.transforms.protocols import Cuts, Interpolation

# Image sizes (height, width) to try a recipe on: photographs, thumbnails, panoramas, and one large enough for any crop.
_TRIED = ((375, 500), (500, 375), (256, 256), (1200, 1600), (32, 32), (8, 8), (90, 1000), (1000, 90), (20_000, 20_000))
_TRIES = 8  # sets of random numbers per size


@dataclass(frozen=True, slots=True)
class CutForm:
    """The common form of a recipe's cuts."""

    is_windowed: bool  # some windows are not the whole resized region
    fill: tuple[int, int, int]  # RGB, shown where a window reaches beyond the region
    interpolation: Interpolation = "bilinear"  # of every resize

    def takes(self, chain: list[Cuts]) -> NDArray[np.bool_]:
        """Return (n,) True for each of the n samples whose cuts the graph executes exactly."""
        if len(chain) != 1:
            return np.zeros(len(chain[0]), np.bool_)
        (cuts,) = chain
        takes = np.ones(len(cuts), np.bool_) if cuts.interpolation == self.interpolation else ~_resampled(cuts)
        if not self.is_windowed:
            return takes & ~_windowed(cuts)
        return takes if cuts.fill == self.fill else takes & ~_showing_fill(cuts)


def form_of(recipe: Recipe, input_size: tuple[int, int] | None) -> CutForm:
    """Return the form of a recipe's cuts, tried on images of many sizes, or of the common size.

    Raises OptionError for geometry that needs more than one cut for every image.
    """
    tried = (input_size,) if input_size else _TRIED
    sizes = np.repeat(np.array(tried, np.int64), _TRIES, axis=0)
    single: list[Cuts] = []
    refusal: OptionError | None = None
    for number, size in enumerate(sizes):
        try:
            chain = recipe.draw_cuts(Draws(0, 0, np.array([number])), size[None])
        except OptionError as exc:  # the image is smaller than a crop that does not pad; such an image raises again when loaded
            refusal = exc
            continue
        if len(chain) == 1:
            single += chain
    if not single:
        raise refusal or OptionError(
            "DALI's graph does one crop, resize, crop and flip per image; this recipe's geometry resamples more than "
            "once or flips in between; pass backend='images_cpu', or merge the steps"
        )
    fills = [cuts.fill for cuts in single if _showing_fill(cuts).any()]
    interpolations = [cuts.interpolation for cuts in single if _resampled(cuts).any()]
    return CutForm(
        is_windowed=any(_windowed(cuts).any() for cuts in single),
        fill=fills[0] if fills else single[0].fill,
        interpolation=interpolations[0] if interpolations else "bilinear",
    )


def _windowed(cuts: Cuts) -> NDArray[np.bool_]:
    """Return (n,) True where the window is not the whole resized region."""
    at, size = cuts.window[:, :2], cuts.window[:, 2:]
    return np.asarray(((at != 0) | (size != cuts.size)).any(axis=1))


def _resampled(cuts: Cuts) -> NDArray[np.bool_]:
    """Return (n,) True where the region is resized to another size."""
    return np.asarray((cuts.size != cuts.region[:, 2:]).any(axis=1))


def _showing_fill(cuts: Cuts) -> NDArray[np.bool_]:
    """Return (n,) True where the window reaches beyond the resized region."""
    at, size = cuts.window[:, :2], cuts.window[:, 2:]
    return np.asarray(((at < 0) | (at + size > cuts.size)).any(axis=1))
