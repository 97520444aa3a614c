"""A torch Dataset that was taken over, remembered so that later changes to it are detected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datapipe.core.errors import LifecycleError
from datapipe.transforms import Recipe


@dataclass(frozen=True, slots=True)
class Original:
    """The dataset, with the number of samples and the transforms at the time it was taken over."""

    dataset: Any
    num_samples: int
    recipe: Recipe

    @classmethod
    def of(cls, dataset: Any) -> Original:
        return cls(dataset, len(dataset), _recipe_of(dataset))

    @property
    def transform(self) -> object:
        """The dataset's transform of each image; None: nothing."""
        return _transform_of(self.dataset)

    def check_unchanged(self) -> None:
        """Raise LifecycleError if the dataset's transforms or its length have changed."""
        name, remedy = type(self.dataset).__qualname__, "make the loader (from_torch, DataLoader) after the change"
        if len(self.dataset) != self.num_samples:
            raise LifecycleError(
                f"{name} had {self.num_samples} samples when the loader was made and has {len(self.dataset)} now; {remedy}"
            )
        found = _recipe_of(self.dataset)
        if found != self.recipe:
            raise LifecycleError(
                f"the transforms of {name} were {self.recipe!r:.200} when the loader was made and are {found!r:.200} now; "
                f"{remedy}"
            )


def _recipe_of(dataset: Any) -> Recipe:
    return Recipe.of(_transform_of(dataset), input_kind="pil")


def _transform_of(dataset: Any) -> object:
    """Return the transform that `see_through` finds: that of the dataset inside Subsets and ConcatDatasets."""
    if type(dataset).__module__ == "torch.utils.data.dataset":
        parts = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
        return _transform_of(parts[0])
    return getattr(dataset, "transform", None)
