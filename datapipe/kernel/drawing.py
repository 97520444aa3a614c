"""Tell functions that certainly draw no random numbers, and remember nothing, from those that may.

A function is known by its code: by the names that it uses. Its samples are tensors and plain values.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.utils.data

_BUILTINS = frozenset(vars(builtins)[name] for name in (
    "abs", "all", "any", "bool", "bytes", "dict", "divmod", "enumerate", "filter", "float", "frozenset", "int", "isinstance",
    "len", "list", "map", "max", "min", "next", "iter", "print", "range", "repr", "reversed", "round", "set", "slice", "sorted",
    "str", "sum", "tuple", "type", "zip",
))  # fmt: skip
# Attributes of torch, numpy, tensors, arrays, and Python's containers and texts that draw nothing, whichever of them has it.
_ATTRIBUTES = frozenset((
    "abs", "add", "add_", "all", "amax", "amin", "any", "append", "arange", "argmax", "argsort", "array", "as_tensor",
    "asarray", "astype", "bfloat16", "bool", "byte", "cat", "channels_last", "chunk", "clamp", "clip", "clone", "concat",
    "concatenate", "contiguous", "contiguous_format", "copy", "copy_", "cpu", "cumsum", "data", "decode", "default_collate",
    "default_convert", "detach", "device", "dim", "div", "div_", "double", "dtype", "encode", "endswith", "exp", "expand",
    "expand_as", "extend", "eye", "fill_", "flatten", "flip", "float", "float16", "float32", "float64", "FloatTensor",
    "format", "from_numpy", "full", "full_like", "functional", "get", "half", "hstack", "index", "index_select", "insert",
    "int", "int16", "int32", "int64", "int8", "interpolate", "is_tensor", "item", "items", "join", "keys", "log", "long",
    "LongTensor", "lower", "max", "mean", "min", "mul", "mul_", "narrow", "ndim", "newaxis", "nn", "no_grad", "nonzero",
    "numel", "numpy", "one_hot", "ones", "ones_like", "pad", "pad_sequence", "permute", "pop", "prod", "ravel", "repeat",
    "replace", "reshape", "rnn", "roll", "setdefault", "shape", "short", "size", "sort", "split", "sqrt", "squeeze",
    "stack", "startswith", "strip", "sub", "sub_", "sum", "swapaxes", "T", "Tensor", "tensor", "to", "tolist", "transpose",
    "type", "type_as", "uint8", "unbind", "unsqueeze", "update", "upper", "utils", "values", "view", "vstack", "where",
    "zero_", "zeros", "zeros_like",
))  # fmt: skip
_LIBRARIES: tuple[Any, ...] = (torch, np, torch.nn.functional, torch.nn.utils.rnn, torch.utils.data)
_OTHERS = (*_LIBRARIES, torch.Tensor, np.ndarray, list, dict, set, str, bytes, tuple)
_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, np.dtype, np.generic)
_MOST_CALLS = 50  # functions within functions that are looked at
_UNKNOWN = object()  # in place of a global that does not exist


def may_draw(function: Any) -> str | None:
    """Return what, used in a function, may draw random numbers or keep a state; None if it certainly does neither."""
    return _in_value("", function, set())


def _in_value(name: str, value: Any, seen: set[int]) -> str | None:
    """Return what may draw in a value that a function uses by `name`."""
    if id(value) in seen or _is_plain(value) or _is_known(value):
        return None
    if isinstance(value, types.ModuleType):
        return None if value.__name__.partition(".")[0] in ("torch", "numpy") else value.__name__
    seen.add(id(value))
    if len(seen) > _MOST_CALLS:
        return name or "many functions"
    if isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
        return next(filter(None, (_in_value(name, part, seen) for part in parts)), None)
    if isinstance(value, types.FunctionType):
        return _in_function(value, {}, seen)
    called, instance = value, value
    if isinstance(value, types.MethodType):
        called, instance = value.__func__, value.__self__
    elif not isinstance(value, type):
        called = vars(type(value)).get("__call__")
    if not isinstance(called, types.FunctionType) or not hasattr(instance, "__dict__"):
        return name or _name_of(value)
    return _in_function(called, {**vars(type(instance)), **vars(instance)}, seen)


def _in_function(function: types.FunctionType, own: Mapping[str, Any], seen: set[int]) -> str | None:
    """Return what may draw in a function. `own`: the attributes of the object whose method it is."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for value in values:
        if (found := _in_value(_name_of(function), value, seen)) is not None:
            return found
    for name, cell in cells.items():
        try:
            found = _in_value(name, cell.cell_contents, seen)
        except ValueError:  # empty so far
            found = name
        if found is not None:
            return found
    for one in _instructions(function.__code__):
        operation, name = one.opname, str(one.argval)
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            found = _in_value(name, function.__globals__.get(name, vars(builtins).get(name, _UNKNOWN)), seen)
        elif operation in ("LOAD_ATTR", "LOAD_METHOD"):
            found = _in_attribute(name, own, seen)
        else:
            keeps = any(kind in operation for kind in ("GLOBAL", "ATTR", "IMPORT", "BUILD_CLASS"))
            found = name if keeps or (operation in ("STORE_DEREF", "DELETE_DEREF") and name in cells) else None
        if found is not None:
            return found
    return None


def _in_attribute(name: str, own: Mapping[str, Any], seen: set[int]) -> str | None:
    is_of_others = any(hasattr(other, name) for other in _OTHERS)
    if name not in _ATTRIBUTES and (is_of_others or name not in own):
        return name
    if name not in own:
        return None
    value = own[name]
    if not isinstance(value, types.FunctionType):
        return _in_value(name, value, seen)
    if id(value) in seen:
        return None
    seen.add(id(value))
    return _in_function(value, own, seen)


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of a function and of those defined in it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)) and type(value) in (tuple, frozenset):
        return all(map(_is_plain, value))
    return type(value).__module__ in ("builtins", "torch", "numpy") and isinstance(value, _PLAIN)


def _is_known(value: Any) -> bool:
    """Return whether a value is a type or function of Python's or a library's that draws nothing."""
    if isinstance(value, type) and issubclass(value, BaseException):
        return value.__module__ == "builtins"
    name = getattr(value, "__name__", None)
    if not isinstance(name, str):
        return False
    if vars(builtins).get(name) is value:
        return value in _BUILTINS
    return name in _ATTRIBUTES and any(getattr(library, name, None) is value for library in _LIBRARIES)


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
