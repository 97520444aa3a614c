"""Labelled datasets for a classifier, and the usual transforms for training and validation."""

from __future__ import annotations

import os

import torch

from datapipe.errors import OptionError
from datapipe.kinds.images.data import Images
from datapipe.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CenterCrop,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
)


def training_recipe(size: int) -> list[object]:
    """Return a random crop of `size` pixels, flipped half the time, normalised to float32."""
    return [RandomResizedCrop(size), RandomHorizontalFlip(), *_normalised()]


def validation_recipe(size: int) -> list[object]:
    """Return the central crop of `size` pixels of an image whose shorter side is 8/7 of that, normalised to float32."""
    return [Resize(round(size * 8 / 7)), CenterCrop(size), *_normalised()]


def _normalised() -> list[object]:
    return [ToDtype(torch.float32, scale=True), Normalize(IMAGENET_MEAN, IMAGENET_STD)]


def open_labelled(path: str | os.PathLike[str]) -> Images:
    """Open the dataset at `path`. Raises OptionError if it has no images or labels, and what `open_index` raises."""
    dataset = Images(path)
    held = ", ".join(field.name for field in dataset.index.manifest.fields)
    if not dataset.fields.has_image:
        raise OptionError(f"{path}: holds no images (has: {held}); this command trains image classifiers")
    if not dataset.fields.has_label:
        raise OptionError(
            f"{path}: its samples have no label (has: {held}); convert a folder with a directory per class, or a table with a "
            "label column, or pass the labels with `datapipe convert --class-map`"
        )
    if not len(dataset):
        raise OptionError(f"{path}: holds no samples")
    return dataset


def count_classes(dataset: Images, wanted: int | None = None, *, where: str) -> int:
    """Return the number of classes for the model's head: `wanted`, else those that the dataset names, else the highest label + 1.

    `where` names the dataset in errors. Raises OptionError for labels that are negative or not below that number. Reads every
    label.
    """
    labels = dataset.index.labels()
    least, most = int(labels.min()), int(labels.max())
    if least < 0:
        raise OptionError(f"{where}: holds the label {least}; classes count from 0: remove those samples, or give them a class")
    named = dataset.index.manifest.classes
    num_classes = wanted or max(len(named or ()), most + 1)
    if most >= num_classes:
        raise OptionError(
            f"{where}: labels go up to {most}, and a head of {num_classes} classes ends at {num_classes - 1}; "
            f"ask for {most + 1} or more"
        )
    return num_classes


def check_same_classes(train: Images, val: Images) -> None:
    """Raise OptionError if a label means different classes in the two datasets."""
    ours, theirs = train.index.manifest.classes, val.index.manifest.classes
    if ours is not None and theirs is not None and ours != theirs:
        first = next(
            (f"label {number} is {a!r} and {b!r}" for number, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
            f"{len(ours)} and {len(theirs)} classes",
        )
        raise OptionError(
            f"training and validation set name different classes ({first}); make both with one "
            "`datapipe convert --split`, or with the same --class-map"
        )
