"""torchvision's folders of images: `ImageFolder`, `DatasetFolder`, and subclasses that read as these do."""

from __future__ import annotations

import os
from typing import Any

from datapipe.datasets.labels import class_numbers, relabelled
from datapipe.errors import OptionError
from datapipe.listed import ListedFiles

_MODULE = "torchvision.datasets.folder"
_LOADERS = ("default_loader", "pil_loader")  # what a file becomes with either: a PIL image, RGB
_SUFFIXES = frozenset(("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"))


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
    if hasattr(dataset, "__getitems__"):
        raise OptionError(f"{name} has a __getitems__ of its own")
    loader = dataset.loader
    if getattr(loader, "__module__", "") != _MODULE or getattr(loader, "__name__", "") not in _LOADERS:
        raise OptionError(f"{name} reads files by {getattr(loader, '__qualname__', loader)!s}, which is not torchvision's loader")
    if _joint_transform(dataset):
        raise OptionError(f"{name} has transforms that take image and label together")
    paths = [os.fspath(path) for path, _ in dataset.samples]
    others = {path.rpartition(".")[2].lower() for path in paths} - _SUFFIXES
    if others:
        raise OptionError(f"{name} has files of a form that datapipe may not read (.{min(others)[-20:]})")
    labels = class_numbers([target for _, target in dataset.samples], name)
    labels = relabelled(labels, dataset.target_transform, f"{name}'s target_transform")
    return ListedFiles(
        paths,
        labels,
        where=str(dataset.root),
        classes=tuple(dataset.classes),
        class_to_idx=dict(dataset.class_to_idx),
    )


def _joint_transform(dataset: Any) -> bool:
    """Whether `transforms=` was given in place of `transform=`."""
    transforms = getattr(dataset, "transforms", None)
    return transforms is not None and type(transforms).__qualname__ != "StandardTransform"
