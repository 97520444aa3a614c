"""Note what a torch loader reads, and its transforms, for a later trial, without reading any data."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.adapt.loaders import has_collate_fn, unwrap_torch_loader
from datapipe.core.errors import OptionError
from datapipe.diagnostics.trials.shards import Shards, shards_of

MAX_SAMPLES = 1000
_BY_HAND = "to try shards by hand: datapipe convert FOLDER DST, then datapipe.DataLoader('DST', ...)"
_CONTAINERS = ("torch.utils.data.dataset.Subset", "torch.utils.data.dataset.ConcatDataset")
_HUGGING_FACE = ("datasets.arrow_dataset", "datasets.iterable_dataset")


@dataclass(frozen=True, slots=True)
class SampledFiles:
    """Some files of a folder of images, drawn at random."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]  # -1 if there are none
    num_samples: int  # of the whole dataset


@dataclass(frozen=True, slots=True)
class Sample:
    """Some of the data, and a loader's recipe. Pickles without any of the user's code."""

    data: SampledFiles | Shards
    recipe: Any  # transforms.Recipe
    batch_size: int
    num_workers: int
    where: str  # the dataset's root, if it has one
    num_sources: int = 1  # folders, or sets of shards, that the dataset consists of


def pickled_sample(loader: Any) -> bytes | str:
    """Return a pickled `Sample`, or the reason why datapipe's loader cannot be tried on this one's data."""
    found = sample_of(loader)
    return found if isinstance(found, str) else pickle.dumps(found)


def sample_of(loader: Any) -> Sample | str:
    """Return the sample or the reason, unpickled. Takes some tenths of a second for a dataset of a million files."""
    dataset = getattr(loader, "dataset", None)
    if type(loader).__module__.startswith("datapipe."):
        return "the loader is already datapipe's"
    if dataset is None:
        return "it has no dataset"
    is_stream = type(dataset).__module__.startswith("webdataset.")
    if not is_stream and (reason := why_no_files(dataset)):
        return reason
    try:
        loader = unwrap_torch_loader(loader)
    except OptionError as exc:
        return str(exc).removeprefix("from_torch: ")
    if has_collate_fn(loader):
        collate = loader.collate_fn
        return f"its collate_fn is custom Python code ({getattr(collate, '__qualname__', type(collate).__qualname__)})"
    return _of_stream(loader, dataset) if is_stream else _of_folders(loader, dataset)


def _of_folders(loader: Any, dataset: Any) -> Sample | str:
    from datapipe.datasets import Seen, see_through
    from datapipe.transforms import Recipe

    seen = see_through(dataset)
    if not isinstance(seen, Seen):
        return f"datapipe cannot read its dataset: {seen.reason}"
    recipe = Recipe.of(seen.transform, input_kind="pil")
    if recipe.rest:
        return f"its transforms: {recipe.rest_reason}"
    batch_size = loader.batch_size or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if not batch_size or not len(seen.index):
        return "its batch size is unknown"
    num = min(MAX_SAMPLES, len(seen.index))
    chosen = np.sort(np.random.default_rng(0).choice(len(seen.index), num, replace=False))  # not the script's random state
    entries = seen.index.look_up(seen.index.ids(chosen), "image")
    files = SampledFiles(tuple(map(os.path.abspath, entries.extents.paths)), tuple(entries.labels.tolist()), len(seen.index))
    parts = _parts(dataset)
    where = str(getattr(parts[0], "root", ""))
    return Sample(files, recipe, batch_size, loader.num_workers, where=where, num_sources=len(parts))


def _of_stream(loader: Any, pipeline: Any) -> Sample | str:
    from datapipe.transforms import Recipe

    found = shards_of(pipeline)
    if isinstance(found, str):
        return found
    shards, stream = found
    recipe = Recipe.of(stream.transform, input_kind="pil")
    if recipe.rest:
        return f"its transforms: {recipe.rest_reason}"
    if (loader.batch_size is None) == (stream.batch_size is None):
        return "its batches are made neither by the loader nor by the pipeline, or by both"
    batch_size = loader.batch_size or stream.batch_size or 1
    return Sample(shards, recipe, batch_size, loader.num_workers, where=shards.directory)


def why_no_files(dataset: Any) -> str | None:
    """Return why the files are unknown. It compares names only, so that nothing is imported for an unrelated dataset."""
    for part in _parts(dataset):
        kind = type(part)
        if is_taken_over(part):
            return f"datapipe.from_torch has taken its Dataset over already; {_BY_HAND}"
        if kind.__module__ in _HUGGING_FACE:
            made_by = "the script's own Python code (set_transform, or the collate_fn)"
            return f"the images of its Hugging Face dataset are processed by {made_by}"
        if not any(base.__module__.partition(".")[0] == "torchvision" for base in kind.__mro__):
            return f"datapipe sees no files in {kind.__qualname__}; {_BY_HAND}"
    return None


def is_taken_over(dataset: Any) -> bool:
    """Return True for a Dataset that `from_torch` has wrapped."""
    return type(dataset).__module__.startswith("datapipe.")


def _parts(dataset: Any, depth: int = 0) -> list[Any]:
    """Return the datasets inside torch's `Subset` and `ConcatDataset`."""
    kind = type(dataset)
    if f"{kind.__module__}.{kind.__qualname__}" not in _CONTAINERS or depth == 8:
        return [dataset]
    within = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    return [part for one in within for part in _parts(one, depth + 1)]
