"""torchvision's folders of images: `ImageFolder`, `DatasetFolder`, and subclasses that read as these do."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.errors import OptionError
from datapipe.listed import ListedFiles

_MODULE = "torchvision.datasets.folder"
_LOADERS = ("default_loader", "pil_loader")  # what a file becomes with either: a PIL image, RGB


def folder_index(dataset: Any) -> ListedFiles | None:
    """The files of such a folder in its order, with the labels it gives; None if it is none.

    Raises OptionError, with the reason, for one that reads otherwise than torchvision does.
    """
    kinds: tuple[Any, ...] = type(dataset).__mro__
    base = next((kind for kind in kinds if (kind.__module__, kind.__qualname__) == (_MODULE, "DatasetFolder")), None)
    if base is None:
        return None
    name = type(dataset).__qualname__
    if type(dataset).__getitem__ is not base.__getitem__ or type(dataset).__len__ is not base.__len__:
        raise OptionError(f"{name} has a __getitem__ or __len__ of its own")
    loader = dataset.loader
    if getattr(loader, "__module__", "") != _MODULE or getattr(loader, "__name__", "") not in _LOADERS:
        raise OptionError(f"{name} reads files by {getattr(loader, '__qualname__', loader)!s}, which is not torchvision's loader")
    if _joint_transform(dataset):
        raise OptionError(f"{name} has transforms that take image and label together")
    labels = np.array([target for _, target in dataset.samples], np.int64)
    if dataset.target_transform is not None:
        labels = _mapped(labels, dataset.target_transform, name)
    return ListedFiles(
        [path for path, _ in dataset.samples],
        labels,
        where=str(dataset.root),
        classes=tuple(dataset.classes),
        class_to_idx=dict(dataset.class_to_idx),
    )


def _joint_transform(dataset: Any) -> bool:
    """Whether `transforms=` was given in place of `transform=`."""
    transforms = getattr(dataset, "transforms", None)
    return transforms is not None and type(transforms).__qualname__ != "StandardTransform"


def _mapped(labels: Any, target_transform: Any, name: str) -> Any:
    """Labels by way of what the user makes of them, asked once for each class."""
    values = {}
    for label in np.unique(labels).tolist():
        value = target_transform(label)
        if value != target_transform(label):
            raise OptionError(f"{name}'s target_transform gives one value now and another one then")
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise OptionError(f"{name}'s target_transform gives a {type(value).__name__}, which is no class number")
        values[label] = int(value)
    return np.array([values[label] for label in labels.tolist()], np.int64)
