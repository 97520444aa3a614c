"""Tell code that may read the random state without drawing from it, so that no trace of that is left.

All code that can be reached from an object is looked at, by the names that it uses: more than is called, rather than less.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

# Functions and attributes that read a generator's state or seed, or draw from it and put it back, and those that lead to them.
_READERS = frozenset((
    "initial_seed", "getstate", "get_state", "get_rng_state", "fork_rng", "default_generator", "preserve_rng_state",
    "get_bit_generator", "bit_generator", "_bit_generator", "mtrand", "_rand", "_inst", "graphsafe_get_state",
    "get_rng_state_all", "eval", "exec", "import_module", "__import__",
))  # fmt: skip
# Packages of which nothing that a Dataset calls reads the state so. What their objects hold is looked at all the same.
_TRUSTED = frozenset((
    *sys.stdlib_module_names, "PIL", "cv2", "datapipe", "datasets", "h5py", "lmdb", "numpy", "pandas", "polars", "pyarrow",
    "scipy", "tokenizers", "torch", "torchvision", "transformers", "zarr",
))  # fmt: skip
_MOST = 3000  # objects that are looked at
_MOST_VALUES = 64  # of a container, besides one of each type
_MOST_TYPED = 10_000  # values of a container whose types are looked at


def may_read_state(value: Any) -> str | None:
    """Return the name by which code that an object leads to may read the random state; None if there is none.

    Code in other languages than Python is taken to read no state of Python's.
    """
    seen: dict[int, Any] = {}  # keeps what it names alive, as ids are used again
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _LEAVES):
            continue
        seen[id(one)] = one
        if len(seen) > _MOST:
            return "more code than is looked at"
        if isinstance(one, types.CodeType):
            found = next((name for name in one.co_names if name in _READERS), None)
            if found is not None:
                return found
            waiting += [constant for constant in one.co_consts if isinstance(constant, types.CodeType)]
            continue
        if isinstance(one, types.FunctionType):
            is_trusted = _is_trusted(str(one.__globals__.get("__name__")))
            waiting += _values_of_function(one, is_trusted=is_trusted)
            waiting += [] if is_trusted else [one.__code__]
            continue
        waiting += _led_to(one)
    return None


_LEAVES = (int, float, complex, str, bytes, type(None), types.ModuleType, types.BuiltinFunctionType)


def _values_of_function(function: types.FunctionType, *, is_trusted: bool) -> Iterator[Any]:
    """Yield the values that a function uses: defaults, its closure's, and unless trusted, globals, also of modules."""
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty so far
            continue
    yield getattr(function, "__wrapped__", None)
    names = frozenset(() if is_trusted else _names_in(function.__code__))
    for name in names:
        found = function.__globals__.get(name, sys.modules.get(name))
        if isinstance(found, types.ModuleType):
            yield from _values_of_module(found, names, set())
        else:
            yield found


def _values_of_module(module: types.ModuleType, names: frozenset[str], seen: set[str]) -> Iterator[Any]:
    if _is_trusted(module.__name__) or module.__name__ in seen:
        return
    seen.add(module.__name__)
    for name in names & vars(module).keys():
        found = vars(module)[name]
        if isinstance(found, types.ModuleType):
            yield from _values_of_module(found, names, seen)
        else:
            yield found


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _led_to(one: Any) -> Iterator[Any]:
    """Yield what an object that is no function consists of, or calls."""
    if isinstance(one, Mapping) and _is_trusted(type(one).__module__):
        yield from _some_of(one.values())
    elif isinstance(one, list | tuple | set | frozenset | collections.deque):
        yield from _some_of(one)
    elif isinstance(one, np.ndarray):
        yield from _some_of(one.flat if one.dtype.hasobject else ())
    if isinstance(one, functools.partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, types.MethodType):
        yield from (one.__func__, one.__self__)
    elif isinstance(one, property):
        yield from (one.fget, one.fset)
    elif isinstance(one, staticmethod | classmethod):
        yield one.__func__
    elif isinstance(one, type):
        for kind in one.__mro__:
            if not _is_trusted(kind.__module__):
                yield from vars(kind).values()
    elif type(one).__module__.partition(".")[0] not in sys.stdlib_module_names or type(one).__module__ == "__main__":
        yield from (type(one), *_attributes_of(one))
    yield inspect.getattr_static(one, "__wrapped__", None)


def _attributes_of(one: Any) -> Iterator[Any]:
    """Yield the values of the attributes that an instance has itself."""
    yield from getattr(one, "__dict__", {}).values()
    for kind in type(one).__mro__:
        if not _is_trusted(kind.__module__):
            slots = [name for name, found in vars(kind).items() if isinstance(found, types.MemberDescriptorType)]
            yield from (getattr(one, name, None) for name in slots)


def _some_of(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the first values of a container, and one of each type."""
    first = list(itertools.islice(values, _MOST_TYPED))
    yield from first[:_MOST_VALUES]
    yield from {type(one): one for one in first[_MOST_VALUES:]}.values()


def _is_trusted(module: str) -> bool:
    return module != "__main__" and module.partition(".")[0] in _TRUSTED
