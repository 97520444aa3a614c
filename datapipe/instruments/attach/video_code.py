"""Find out by which library a Dataset's own code decodes videos, from the names that the code uses. None of it is run."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

# Libraries, and names of which the code must use one, as others of the library have nothing to do with videos; (): any name.
_LIBRARIES: dict[str, tuple[str, ...]] = {
    "torchcodec": (),
    "decord": (),
    "av": (),
    "cv2": ("VideoCapture",),
    "torchvision": ("read_video", "VideoReader"),
}
_MOST_FUNCTIONS = 100


def video_library(dataset: Any) -> str | None:
    """Return the library by which the code of a Dataset's class decodes videos; None: it decodes none, or that is unknown."""
    for function in _functions(type(dataset)):
        names = _names(function.__code__)
        for name in names:
            library = _package(name, function.__globals__)
            needs = _LIBRARIES.get(library or "")
            if needs is not None and (not needs or names.intersection(needs)):
                return library
    return None


def _functions(kind: type) -> Iterator[types.FunctionType]:
    """Yield the methods of a class and of those that it inherits from, and the functions of their modules that these use."""
    waiting = [value for one in kind.__mro__ for value in vars(one).values() if isinstance(value, types.FunctionType)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        function = waiting.pop(0)
        if id(function) in seen or function.__module__.startswith("torch.utils.data"):
            continue
        seen.add(id(function))
        yield function
        used = (function.__globals__.get(name) for name in _names(function.__code__))
        for one in used:
            if isinstance(one, types.FunctionType) and one.__module__ == function.__module__:
                waiting.append(one)
            elif isinstance(one, type) and one.__module__ == function.__module__:
                waiting += [value for value in vars(one).values() if isinstance(value, types.FunctionType)]


def _names(code: types.CodeType) -> set[str]:
    """Return the names of globals, attributes and imports that code uses, and functions in it."""
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opcode in dis.hasname}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _package(name: str, known: dict[str, Any]) -> str | None:
    """Return the package that a name stands for: of what is known by it, or, for an import within the code, itself."""
    value = known.get(name)
    if value is None:
        package = name.partition(".")[0]
        return package if package in _LIBRARIES else None
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else None
