"""Which cuts the graph can carry out: one per sample, of one form for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datapipe.draws import Draws
from datapipe.errors import OptionError
from datapipe.transforms import Recipe
from datapipe.transforms.protocols import Cuts

# Image sizes (height, width) on which a recipe is tried: photographs, thumbnails, panoramas.
_TRIED = ((375, 500), (500, 375), (256, 256), (1200, 1600), (32, 32), (8, 8), (90, 1000), (1000, 90))
_TRIES = 8  # sets of random numbers for each


@dataclass(frozen=True, slots=True)
class CutForm:
    """What the cuts of a recipe have in common."""

    is_windowed: bool  # some windows are not the whole resized region
    fill: tuple[int, int, int]  # RGB, shown where a window reaches beyond it

    def takes(self, chain: list[Cuts]) -> bool:
        """Whether the graph carries out exactly these cuts."""
        if len(chain) != 1:
            return False
        if not self.is_windowed:
            return not _is_windowed(chain[0])
        return chain[0].fill == self.fill or not _shows_fill(chain[0])


def form_of(recipe: Recipe, input_size: tuple[int, int] | None) -> CutForm:
    """The form of a recipe's cuts, tried on images of many sizes, or of the one that all have.

    Raises OptionError for geometry that needs more than one cut whatever the image.
    """
    tried = (input_size,) if input_size else _TRIED
    sizes = np.repeat(np.array(tried, np.int64), _TRIES, axis=0)
    chains = [recipe.draw_cuts(Draws(0, 0, np.array([number])), sizes[number : number + 1]) for number in range(len(sizes))]
    single = [chain[0] for chain in chains if len(chain) == 1]
    if not single:
        raise OptionError(
            "DALI's graph carries out one crop, resize, crop and flip per image; this recipe's geometry resamples more than "
            "once or flips in between; pass backend='images_cpu', or merge the steps"
        )
    fills = [cuts.fill for cuts in single if _shows_fill(cuts)]
    return CutForm(is_windowed=any(_is_windowed(cuts) for cuts in single), fill=fills[0] if fills else single[0].fill)


def _is_windowed(cuts: Cuts) -> bool:
    return bool((cuts.window[:, :2] != 0).any() or (cuts.window[:, 2:] != cuts.size).any())


def _shows_fill(cuts: Cuts) -> bool:
    at, size = cuts.window[:, :2], cuts.window[:, 2:]
    return bool((at < 0).any() or (at + size > cuts.size).any())
