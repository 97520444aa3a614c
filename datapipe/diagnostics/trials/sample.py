"""Which files a torch loader reads and what becomes of them, for a later trial: noted without reading any."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_SAMPLES = 1000
_CONTAINERS = ("torch.utils.data.dataset.Subset", "torch.utils.data.dataset.ConcatDataset")


@dataclass(frozen=True, slots=True)
class Sample:
    """Some samples of a folder of images, drawn at random, and a loader's recipe. Pickles without anything of the user's."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]  # -1 where there are none
    recipe: Any  # transforms.Recipe
    num_samples: int  # of the whole dataset
    batch_size: int
    num_workers: int
    where: str  # the dataset's root, as far as it has one


def pickled_sample(loader: Any) -> bytes | str:
    """A pickled `Sample`; or, in words, why datapipe's loader could not be tried on this one's data."""
    found = sample_of(loader)
    return found if isinstance(found, str) else pickle.dumps(found)


def sample_of(loader: Any) -> Sample | str:
    """As `pickled_sample`. Takes some tenths of a second for a dataset of a million files."""
    dataset = getattr(loader, "dataset", None)
    if type(loader).__module__.startswith("datapipe."):
        return "it is datapipe's loader already"
    if dataset is None:
        return "it has no dataset of its own"
    if not _is_torchvisions(dataset):
        return f"its dataset, {type(dataset).__qualname__}, is none of torchvision's folders of images"
    if _maps_targets(dataset):
        return "its dataset has a target_transform, which is Python code of its own"
    collate, default = getattr(loader, "collate_fn", None), _default_collates()
    if collate not in default:
        return f"its collate_fn is Python code of its own ({getattr(collate, '__qualname__', type(collate).__qualname__)})"
    from datapipe.datasets import Seen, see_through
    from datapipe.transforms import Recipe

    seen = see_through(dataset)
    if not isinstance(seen, Seen):
        return f"its dataset cannot be seen through: {seen.reason}"
    recipe = Recipe.of(seen.transform)
    if recipe.rest:
        return f"its transforms: {recipe.rest_reason}"
    batch_size = loader.batch_size or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if not batch_size or not len(seen.index):
        return "how large its batches are is not known"
    num = min(MAX_SAMPLES, len(seen.index))
    chosen = np.sort(np.random.default_rng(0).choice(len(seen.index), num, replace=False))  # not the script's random state
    entries = seen.index.look_up(seen.index.ids(chosen), "image")
    return Sample(
        paths=tuple(map(os.path.abspath, entries.extents.paths)),
        labels=tuple(entries.labels.tolist()),
        recipe=recipe,
        num_samples=len(seen.index),
        batch_size=batch_size,
        num_workers=loader.num_workers,
        where=str(getattr(dataset, "root", "")),
    )


def _is_torchvisions(dataset: Any) -> bool:
    """By names alone, so that nothing is imported for a dataset that is surely another one."""
    kinds = [type(one) for one in _parts(dataset)]
    return all(any(base.__module__.partition(".")[0] == "torchvision" for base in kind.__mro__) for kind in kinds)


def _maps_targets(dataset: Any) -> bool:
    return any(getattr(one, "target_transform", None) is not None for one in _parts(dataset))


def _parts(dataset: Any, depth: int = 0) -> list[Any]:
    """The datasets that torch's `Subset` and `ConcatDataset` consist of."""
    kind = type(dataset)
    if f"{kind.__module__}.{kind.__qualname__}" not in _CONTAINERS or depth == 8:
        return [dataset]
    within = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    return [part for one in within for part in _parts(one, depth + 1)]


def _default_collates() -> tuple[Any, ...]:
    from torch.utils.data import default_collate, default_convert

    return default_collate, default_convert
