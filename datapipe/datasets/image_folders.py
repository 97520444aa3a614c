"""torchvision's folders of images: `ImageFolder`, `DatasetFolder`, and subclasses that read in the same way."""

from __future__ import annotations

import os
from typing import Any

from datapipe.core.errors import OptionError
from datapipe.datasets.labels import class_numbers, relabelled
from datapipe.index.file_list import FileListIndex

_MODULE = "torchvision.datasets.folder"
_LOADERS = ("default_loader", "pil_loader")  # both return an RGB PIL image
_SUFFIXES = frozenset(("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"))


def folder_index(dataset: Any) -> FileListIndex | None:
    """Return the files of such a folder in its order, with its labels; None for any other object.

    Raises OptionError, with the reason, for a subclass that reads differently from torchvision.
    """
    kinds: tuple[Any, ...] = type(dataset).__mro__
    base = next((kind for kind in kinds if (kind.__module__, kind.__qualname__) == (_MODULE, "DatasetFolder")), None)
    if base is None:
        return None
    name = type(dataset).__qualname__
    if type(dataset).__getitem__ is not base.__getitem__ or type(dataset).__len__ is not base.__len__:
        raise OptionError(f"{name} has its own __getitem__ or __len__")
    if hasattr(dataset, "__getitems__"):
        raise OptionError(f"{name} has its own __getitems__")
    loader = dataset.loader
    if getattr(loader, "__module__", "") != _MODULE or getattr(loader, "__name__", "") not in _LOADERS:
        raise OptionError(f"{name} reads files with {getattr(loader, '__qualname__', loader)!s}, not with torchvision's loader")
    if _joint_transform(dataset):
        raise OptionError(f"{name} has transforms that take image and label together")
    paths = [os.fspath(path) for path, _ in dataset.samples]
    others = {path.rpartition(".")[2].lower() for path in paths} - _SUFFIXES
    if others:
        raise OptionError(f"{name} has files of a type that datapipe may not read (.{min(others)[-20:]})")
    labels = class_numbers([target for _, target in dataset.samples], name)
    labels = relabelled(labels, dataset.target_transform, f"{name}'s target_transform")
    return FileListIndex(
        paths,
        labels,
        where=str(dataset.root),
        classes=tuple(dataset.classes),
        class_to_idx=dict(dataset.class_to_idx),
    )


def _joint_transform(dataset: Any) -> bool:
    """Return True if `transforms=` was given instead of `transform=`."""
    transforms = getattr(dataset, "transforms", None)
    return transforms is not None and type(transforms).__qualname__ != "StandardTransform"
