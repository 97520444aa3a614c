"""Find where in the user's code a loader was made, and describe the loader."""

from __future__ import annotations

import dis
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from datapipe.instruments.measure.watching import LoaderFacts
from datapipe.instruments.torch_stages.user_code import OURS, is_of_user

# Libraries, and names of which the code must use one, as others of the library have nothing to do with videos; (): any name.
_LIBRARIES: dict[str, tuple[str, ...]] = {
    "torchcodec": (),
    "decord": (),
    "av": (),
    "cv2": ("VideoCapture",),
    "torchvision": ("read_video", "VideoReader"),
}
_MOST_FUNCTIONS = 100

_sites: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def note_site(loader: Any) -> None:
    """Remember the caller, while a loader is being made."""
    with suppress(TypeError):  # the loader cannot be hashed
        if loader not in _sites:
            site = calling_site()
            if site is not None:
                _sites[loader] = site


def site_of(loader: Any) -> str | None:
    """Return where the loader was made, if that was recorded."""
    with suppress(TypeError):
        return _sites.get(loader)
    return None


def calling_site() -> str | None:
    """Return file:line of the innermost frame of user code; without any, of the innermost outside datapipe and torch."""
    frame: FrameType | None = sys._getframe(1)
    fallback = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((OURS, "<")):
            if is_of_user(file):
                return f"{file}:{frame.f_lineno}"
            if fallback is None and f"{os.sep}torch{os.sep}" not in file:
                fallback = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return fallback


def facts_of(loader: Any, key: int) -> LoaderFacts:
    """Describe a loader by its attributes, without its length, which may be costly or have side effects."""
    dataset = getattr(loader, "dataset", None)
    return LoaderFacts(
        key=key,
        kind=_name_of(loader),
        site=site_of(loader),
        dataset=None if dataset is None else _name_of(dataset),
        batch_size=_batch_size(loader),
        num_workers=_attribute(loader, "num_workers", int),
        prefetch_factor=_attribute(loader, "prefetch_factor", int),
        pin_memory=_attribute(loader, "pin_memory", bool),
        persistent_workers=_attribute(loader, "persistent_workers", bool),
        in_order=_attribute(loader, "in_order", bool),
        is_iterable=None if (kind := getattr(loader, "_dataset_kind", None)) is None else kind == 1,
        video_library=_video_library(dataset),
        places=_places(loader, dataset),
    )


def _places(loader: Any, dataset: Any) -> dict[str, str]:
    """Return the places of the user's code that the loader runs; library code is left out."""
    found: dict[str, str | None] = {}
    with suppress(Exception):  # a user's class may raise on attribute access
        inner = _inner(dataset)
        methods = ("__getitems__", "__getitem__", "__iter__")
        found["dataset"] = next((place for name in methods if (place := _place_of(getattr(type(inner), name, None)))), None)
        found["collate"] = _place_of(getattr(loader, "collate_fn", None))
        batches = getattr(loader, "batch_sampler", None)
        samplers = (batches, getattr(batches, "sampler", None), getattr(loader, "sampler", None))
        found["sampler"] = next((place for one in samplers if (place := _place_of(getattr(type(one), "__iter__", None)))), None)
        for transform in getattr(getattr(inner, "transform", None), "transforms", None) or ():
            name = getattr(transform, "__name__", None) or type(transform).__name__
            found[f"transform {name}"] = _place_of(getattr(type(transform), "forward", None)) or _place_of(transform)
    return {what: place for what, place in found.items() if place is not None}


def _inner(dataset: Any) -> Any:
    """Return the dataset inside of Subsets."""
    while type(dataset).__module__ == "torch.utils.data.dataset" and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return dataset


def _place_of(function: Any) -> str | None:
    """Return file:line (name) of a user's function; None for a library's function or no function."""
    function = getattr(function, "__func__", function)
    function = getattr(function, "func", function)  # functools.partial
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None)
    if code is None or not is_of_user(code.co_filename):
        return None
    return f"{code.co_filename}:{code.co_firstlineno} ({getattr(function, '__qualname__', code.co_name)})"


def _attribute(loader: Any, name: str, kind: type) -> Any:
    value = getattr(loader, name, None)
    return value if isinstance(value, kind) else None


def _batch_size(loader: Any) -> int | None:
    size = _attribute(loader, "batch_size", int)
    return _attribute(getattr(loader, "batch_sampler", None), "batch_size", int) if size is None else int(size)


def _name_of(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _video_library(dataset: Any) -> str | None:
    """Return the library by which a Dataset's own code decodes videos, from the names that it uses; none of it is run.

    None: it decodes none, or that is unknown.
    """
    with suppress(Exception):  # a user's class may raise on attribute access
        for function in _functions(type(_inner(dataset))):
            names = _names(function.__code__)
            for name in names:
                library = _package(name, function.__globals__)
                needs = _LIBRARIES.get(library or "")
                if needs is not None and (not needs or names.intersection(needs)):
                    return library
    return None


def _functions(kind: type) -> Iterator[FunctionType]:
    """Yield the methods of a class and of those that it inherits from, and the functions of their modules that these use."""
    waiting = [value for one in kind.__mro__ for value in vars(one).values() if isinstance(value, FunctionType)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        function = waiting.pop(0)
        if id(function) in seen or function.__module__.startswith("torch.utils.data"):
            continue
        seen.add(id(function))
        yield function
        used = (function.__globals__.get(name) for name in _names(function.__code__))
        for one in used:
            if isinstance(one, FunctionType) and one.__module__ == function.__module__:
                waiting.append(one)
            elif isinstance(one, type) and one.__module__ == function.__module__:
                waiting += [value for value in vars(one).values() if isinstance(value, FunctionType)]


def _names(code: CodeType) -> set[str]:
    """Return the names of globals, attributes and imports that code uses, and functions in it."""
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opcode in dis.hasname}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _package(name: str, known: dict[str, Any]) -> str | None:
    """Return the package that a name stands for: of what is known by it, or, for an import within the code, itself."""
    value = known.get(name)
    if value is None:
        package = name.partition(".")[0]
        return package if package in _LIBRARIES else None
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else None
