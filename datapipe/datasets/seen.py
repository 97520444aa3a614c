"""Look inside a torch Dataset: the files that it reads, their labels, its transform of an image, and changes of these."""

from __future__ import annotations

import importlib
import operator
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from datapipe.containers.foreign import ForeignShards, open_foreign
from datapipe.datasets.image_folders import folder_index
from datapipe.errors import FormatError, LifecycleError, OptionError
from datapipe.index.concat import AnyIndex, concatenated, select
from datapipe.index.file_list import FileListIndex
from datapipe.index.manifest import class_numbers
from datapipe.transforms import Recipe

_LOOKED_AT = 1000  # samples of converted data whose names are compared; labels are compared for all


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """The files and the transform of a dataset; and of a webdataset pipeline, how it shuffles and batches."""

    index: AnyIndex  # the samples, in the dataset's order
    transform: object = None  # of each image, which gets a PIL image; None: no transform
    gives_tuples: bool = True  # samples are (image, label), like our batches; else dicts
    fields: tuple[str, ...] | None = None  # names in datapipe's terms of the values of a pipeline's tuples
    shuffles: bool = False
    splits_by_node: bool = False  # each rank takes a part of the shards
    batch_size: int | None = None  # None: it yields single samples
    drop_last: bool = False


def see_through(dataset: object) -> DatasetFiles | str:
    """Return the files and transform of torchvision's image folders, Hugging Face's tables, and `Subset`s and `ConcatDataset`s.

    No sample of the dataset is read. Returns the reason for a subclass with its own behaviour, and for all other datasets, which
    only their own code can read.
    """
    kind = type(dataset)
    if kind is Subset:
        return _subset(dataset)
    if kind is ConcatDataset:
        return _concatenated(dataset)
    try:
        if (folder := folder_index(dataset)) is not None:
            return DatasetFiles(folder, getattr(dataset, "transform", None))
        if (table := _hugging_face_index(dataset)) is not None:
            return DatasetFiles(table, gives_tuples=False)
    except OptionError as exc:
        return str(exc)
    return f"{kind.__module__}.{kind.__qualname__} is custom Python code"


def _hugging_face_index(dataset: Any) -> AnyIndex | None:
    """Return the samples of a `datasets.Dataset`, in its order; None for any other object.

    Raises OptionError, with the reason, for a dataset that computes its samples or keeps them in memory.
    """
    kind = type(dataset)
    if kind.__module__ != "datasets.arrow_dataset" or kind.__qualname__ != "Dataset":
        return None
    form = dataset.format["type"]
    if form is not None:
        how = "a transform of its own (set_transform)" if form == "custom" else f"the format {form!r}"
        raise OptionError(f"the datasets.Dataset has {how}; pass one without, and the transforms to the loader")
    index = _named_files(dataset) or _arrow_files(dataset)
    if len(index) != dataset.data.num_rows:
        raise OptionError(f"the files of the datasets.Dataset have {len(index)} rows, but it has {dataset.data.num_rows}")
    chosen = dataset._indices
    return index if chosen is None else select(index, chosen.column(0).to_numpy())


def _arrow_files(dataset: Any) -> AnyIndex:
    files = importlib.import_module("datasets.table").list_table_cache_files(
        dataset.data
    )  # `cache_files` has those of indices too
    paths = [Path(file).absolute() for file in files]
    if not paths:
        raise OptionError("the datasets.Dataset is in memory; save_to_disk() it and load_from_disk() it")
    if len({path.parent for path in paths}) > 1:
        raise OptionError("the files of the datasets.Dataset are in several directories; save_to_disk() it")
    try:
        return open_foreign(ForeignShards("arrow", paths[0].parent, tuple(path.name for path in paths)))
    except FormatError as exc:
        raise OptionError(str(exc)) from exc


def _named_files(dataset: Any) -> FileListIndex | None:
    """Return the files if the images are paths without bytes, as `load_dataset("imagefolder", ...)` makes them."""
    images = [name for name, feature in dataset.features.items() if type(feature).__qualname__ == "Image"]
    if len(images) != 1:
        return None
    table = dataset.data.table
    structs = table.column(images[0]).combine_chunks()
    data, paths = structs.field("bytes"), structs.field("path")
    if data.null_count < len(structs) or paths.null_count:
        return None
    labels = next((name for name, feature in dataset.features.items() if type(feature).__qualname__ == "ClassLabel"), None)
    names = None if labels is None else tuple(dataset.features[labels].names)
    return FileListIndex(
        [os.fspath(path) for path in paths.to_pylist()],
        None if labels is None else table.column(labels).to_numpy().astype(np.int64),
        where=f"datasets.Dataset of {len(structs)} files",
        classes=names,
        class_to_idx=class_numbers(names),
    )


def _subset(dataset: Any) -> DatasetFiles | str:
    whole = see_through(dataset.dataset)
    if isinstance(whole, str):
        return whole
    try:
        positions = np.fromiter((operator.index(position) for position in dataset.indices), np.int64)
        return DatasetFiles(select(whole.index, positions), whole.transform, whole.gives_tuples)
    except (TypeError, OptionError) as exc:
        return f"a Subset whose indices are not positions ({exc})"


def _concatenated(dataset: Any) -> DatasetFiles | str:
    parts = [see_through(part) for part in dataset.datasets]
    for part in parts:
        if isinstance(part, str):
            return part
    seen = [part for part in parts if isinstance(part, DatasetFiles)]
    if any((part.transform, part.gives_tuples) != (seen[0].transform, seen[0].gives_tuples) for part in seen):
        return "a ConcatDataset of datasets whose transforms differ"
    if any(part.index.manifest.fields != seen[0].index.manifest.fields for part in seen):
        return "a ConcatDataset of datasets with and without labels"
    try:
        return DatasetFiles(concatenated([part.index for part in seen]), seen[0].transform, seen[0].gives_tuples)
    except OptionError as exc:
        return str(exc)


def converted_index(dataset: Any, found: AnyIndex) -> AnyIndex:
    """Return the samples of a torch dataset of a folder's files, in its order, from what that folder was converted to.

    `dataset`: torchvision's folder, or a `Subset` of one. A sampler's positions then mean the same samples. Raises OptionError
    if they would not.
    """
    if isinstance(dataset, Subset):
        whole = converted_index(dataset.dataset, found)
        return select(whole, np.fromiter(dataset.indices, np.int64))
    name, seen, root = f"data={found.where!r}", see_through(dataset), getattr(dataset, "root", None)
    if root is None or isinstance(seen, str):
        raise OptionError(
            f"{name}: converted data can replace one folder that torchvision reads, or a Subset of it, and this is a "
            f"{type(dataset).__qualname__}; read it in the script itself: datapipe.DataLoader({found.where!r}, ...)"
        )
    index = seen.index
    remedy = f"convert the folder again: datapipe convert {os.fspath(root)} DST --to webdataset"
    if len(found) != len(index):
        raise OptionError(f"{name}: has {len(found)} samples, the dataset {len(index)}; {remedy}")
    differ = np.flatnonzero(found.labels() != index.labels())
    if len(differ):
        raise OptionError(f"{name}: sample {differ[0]} has another label than in the dataset; {remedy}")
    places = np.unique(np.linspace(0, max(0, len(index) - 1), min(_LOOKED_AT, len(index))).round().astype(np.int64))
    for ours, theirs in zip(found.ids(places).tolist(), index.ids(places).tolist(), strict=True):
        ours_of, file = found.describe(ours), index.describe(theirs).path
        source = ours_of.source or os.path.relpath(ours_of.path, root)
        if source != os.path.relpath(file, root):
            raise OptionError(f"{name}: sample {ours} was made of {source}, but the dataset has {file}; {remedy}")
    return found


@dataclass(frozen=True, slots=True)
class Original:
    """The dataset, with the number of samples and the transforms at the time it was taken over."""

    dataset: Any
    num_samples: int
    recipe: Recipe

    @classmethod
    def of(cls, dataset: Any, recipe: Recipe | None = None) -> Original:
        """Return the dataset as it is now. `recipe`: its transforms, where they are known."""
        return cls(dataset, len(dataset), _recipe_of(dataset) if recipe is None else recipe)

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
    if type(dataset) is Subset:
        return _transform_of(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return _transform_of(dataset.datasets[0])
    return getattr(dataset, "transform", None)
