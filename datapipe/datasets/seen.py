"""Seeing through a torch Dataset: the files behind it, their labels, and what it does to an image."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from datapipe.datasets.hugging_face import hugging_face_index
from datapipe.datasets.image_folders import folder_index
from datapipe.errors import OptionError
from datapipe.joint import AnyIndex, joined


@dataclass(frozen=True, slots=True)
class Seen:
    """What is behind a dataset."""

    index: AnyIndex  # the samples, in the dataset's order
    transform: object = None  # that it applies to each image, a PIL image at first; None: no one
    gives_tuples: bool = True  # (image, label), as our batches are; else dicts


@dataclass(frozen=True, slots=True)
class Unseen:
    """A dataset that only its own code can read, and why."""

    reason: str


def see_through(dataset: object) -> Seen | Unseen:
    """What is behind `dataset`: torchvision's folders of images, Hugging Face's tables, and `Subset` and `ConcatDataset` of them.

    The dataset is not asked for a sample. What a subclass has made its own is not seen through.
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
    return Unseen(f"{module}.{name} is Python code of its own")


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
        return Unseen(f"a Subset whose indices are no positions ({exc})")


def _concatenated(dataset: Any) -> Seen | Unseen:
    parts = [see_through(part) for part in dataset.datasets]
    seen = [part for part in parts if isinstance(part, Seen)]
    for part in parts:
        if isinstance(part, Unseen):
            return part
    if any((part.transform, part.gives_tuples) != (seen[0].transform, seen[0].gives_tuples) for part in seen):
        return Unseen("a ConcatDataset of datasets that have transforms of their own each")
    if any(part.index.manifest.fields != seen[0].index.manifest.fields for part in seen):
        return Unseen("a ConcatDataset of datasets with and without labels")
    try:
        return Seen(joined([part.index for part in seen]), seen[0].transform, seen[0].gives_tuples)
    except OptionError as exc:
        return Unseen(str(exc))
