"""torchvision's folders of images: `ImageFolder`, `DatasetFolder`, and subclasses that read in the same way.

Labels are accepted only if they are certain to be what torch would get.
"""

from __future__ import annotations

import os
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import OptionError
from datapipe.index.file_list import FileListIndex

_MODULE = "torchvision.datasets.folder"
_LOADERS = ("default_loader", "pil_loader")  # both return an RGB PIL image
_SUFFIXES = frozenset(("jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"))
_AS_IT_IS = (lambda label: label).__code__.co_code


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
    labels = _class_numbers([target for _, target in dataset.samples], name)
    labels = _relabelled(labels, dataset.target_transform, f"{name}'s target_transform")
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


def _class_numbers(labels: Sequence[object], what: str) -> NDArray[np.int64]:
    """Return the (n,) labels. Raises OptionError unless each is exactly an int: torch keeps the types of all others."""
    others = set(map(type, labels)) - {int}
    if others:
        raise OptionError(f"{what} returns a {min(kind.__name__ for kind in others)}, which is not a class number")
    try:
        return np.array(labels, np.int64)
    except OverflowError as exc:
        raise OptionError(f"{what} returns an int beyond 64 bits, which is not a class number") from exc


def _relabelled(labels: NDArray[np.int64], mapping: Any, what: str) -> NDArray[np.int64]:
    """Return (n,) labels mapped by `mapping`, which is called once for each class.

    Raises OptionError for any mapping except a look-up in a dict, list or tuple: a function may return another label each time.
    """
    if leaves_as_it_is(mapping):
        return labels
    if not _looks_up(mapping):
        raise OptionError(f"{what} is custom Python code; use a dict's `__getitem__` or `get`, which datapipe can apply itself")
    distinct, places = np.unique(labels, return_inverse=True)
    try:
        values = [mapping(label) for label in distinct.tolist()]
    except LookupError as exc:
        raise OptionError(f"{what} has no entry for some of the labels") from exc
    return _class_numbers(values, what)[places]


def leaves_as_it_is(mapping: Any) -> bool:
    """Return True if ints pass unchanged: for None, `int`, or a function that only returns its argument."""
    if mapping is None or mapping is int:
        return True
    if type(mapping) is not types.FunctionType:
        return False
    code = mapping.__code__
    return code.co_argcount == 1 and code.co_code == _AS_IT_IS


def _looks_up(mapping: Any) -> bool:
    owner = getattr(mapping, "__self__", None)
    return type(owner) in (dict, list, tuple) and getattr(mapping, "__name__", "") in ("__getitem__", "get")
