"""Look inside a torch Dataset: the files that it reads, their labels, and its transform of an image."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.core.errors import OptionError
from datapipe.datasets.hugging_face import hugging_face_index
from datapipe.datasets.image_folders import folder_index
from datapipe.index.concat import AnyIndex, concatenated


@dataclass(frozen=True, slots=True)
class Seen:
    """The files and the transform of a dataset."""

    index: AnyIndex  # the samples, in the dataset's order
    transform: object = None  # of each image, which gets a PIL image; None: no transform
    gives_tuples: bool = True  # samples are (image, label), like our batches; else dicts


@dataclass(frozen=True, slots=True)
class Unseen:
    """A dataset that only its own code can read, and the reason."""

    reason: str


def see_through(dataset: object) -> Seen | Unseen:
    """Return the files and transform of torchvision's image folders, Hugging Face's tables, and `Subset`s and `ConcatDataset`s.

    No sample of the dataset is read. Returns Unseen for a subclass with its own behaviour, and for all other datasets.
    """
    kind = type(dataset)
    module, name = kind.__module__, kind.__qualname__
    if module == "torch.utils.data.dataset" and name == "Subset":
        return _subset(dataset)
    if module == "torch.utils.data.dataset" and name == "ConcatDataset":
        return _concatenated(dataset)
    try:
        if (folder := folder_index(dataset)) is not None:
            return Seen(folder, getattr(dataset, "transform", None))
        if (table := hugging_face_index(dataset)) is not None:
            return Seen(table, gives_tuples=False)
    except OptionError as exc:
        return Unseen(str(exc))
    return Unseen(f"{module}.{name} is custom Python code")


def _subset(dataset: Any) -> Seen | Unseen:
    whole = see_through(dataset.dataset)
    if isinstance(whole, Unseen):
        return whole
    try:
        positions = np.fromiter((operator.index(position) for position in dataset.indices), np.int64)
        return Seen(
            whole.index.select(np.where(positions < 0, positions + len(whole.index), positions)),
            whole.transform,
            whole.gives_tuples,
        )
    except (TypeError, OptionError) as exc:
        return Unseen(f"a Subset whose indices are not positions ({exc})")


def _concatenated(dataset: Any) -> Seen | Unseen:
    parts = [see_through(part) for part in dataset.datasets]
    seen = [part for part in parts if isinstance(part, Seen)]
    for part in parts:
        if isinstance(part, Unseen):
            return part
    if any((part.transform, part.gives_tuples) != (seen[0].transform, seen[0].gives_tuples) for part in seen):
        return Unseen("a ConcatDataset of datasets whose transforms differ")
    if any(part.index.manifest.fields != seen[0].index.manifest.fields for part in seen):
        return Unseen("a ConcatDataset of datasets with and without labels")
    try:
        return Seen(concatenated([part.index for part in seen]), seen[0].transform, seen[0].gives_tuples)
    except OptionError as exc:
        return Unseen(str(exc))
