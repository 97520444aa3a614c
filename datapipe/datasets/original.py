"""A torch Dataset that was seen through, remembered so that later changes to it are not passed over in silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datapipe.errors import LifecycleError
from datapipe.transforms import Recipe


@dataclass(frozen=True, slots=True)
class Original:
    """The dataset, and what of it was taken over: how many samples, and which transforms."""

    dataset: Any
    num_samples: int
    recipe: Recipe

    @classmethod
    def of(cls, dataset: Any) -> Original:
        return cls(dataset, len(dataset), _recipe_of(dataset))

    @property
    def transform(self) -> object:
        """What it applies to each image; None: nothing."""
        return _transform_of(self.dataset)

    def check_unchanged(self) -> None:
        """Raise LifecycleError where the dataset has other transforms now, or another length."""
        name, remedy = type(self.dataset).__qualname__, "make the loader (from_torch, DataLoader) after the change"
        if len(self.dataset) != self.num_samples:
            raise LifecycleError(
                f"{name} had {self.num_samples} samples when the loader was made, and has {len(self.dataset)} now; {remedy}"
            )
        found = _recipe_of(self.dataset)
        if found != self.recipe:
            raise LifecycleError(
                f"the transforms of {name} were {self.recipe!r:.200} when the loader was made, and are {found!r:.200} now; "
                f"{remedy}"
            )


def _recipe_of(dataset: Any) -> Recipe:
    return Recipe.of(_transform_of(dataset), input_kind="pil")


def _transform_of(dataset: Any) -> object:
    """As `see_through` finds it: that of the dataset under Subsets and sums."""
    if type(dataset).__module__ == "torch.utils.data.dataset":
        parts = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
        return _transform_of(parts[0])
    return getattr(dataset, "transform", None)
