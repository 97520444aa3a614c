"""Read the statements of a function, and keep what it reads besides its arguments, to notice when that has changed."""

from __future__ import annotations

import ast
import builtins
import linecache
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from datapipe.core.parsing import parse
from datapipe.formulas.values import UnclearCode

CONSTANTS = (int, float, str, bool, type(None))
_MISSING = object()
_COMPARED = (
    "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_kwonlyargcount", "co_posonlyargcount",
    "co_flags", "co_qualname",
)  # fmt: skip


def statements_of(function: types.FunctionType) -> list[ast.stmt] | None:
    """Return the body of a function.

    None if its source is not available, or is not what runs: edited since it was imported, or made by other code.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        tree = parse(source)
        # The whole file: its imports change how calls compile.
        module = compile(source, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, SystemError):
        return None
    is_same = any(_is_same(one, code) for one in _nested(module) if one.co_firstlineno == code.co_firstlineno)
    parsed = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _first_line(node) == code.co_firstlineno]
    return parsed[0].body if is_same and len(parsed) == 1 and parsed[0].name == code.co_name else None


def _first_line(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _is_same(one: types.CodeType, other: types.CodeType) -> bool:
    """Return whether two functions do the same. One that defines functions is like no other."""
    if any(getattr(one, name) != getattr(other, name) for name in _COMPARED):
        return False
    return repr(one.co_consts) == repr(other.co_consts)  # by repr, as 1 == True == 1.0


@dataclass(frozen=True, slots=True)
class Read:
    """Something that the code reads besides its arguments: what `owner` holds by that name, or at that key."""

    owner: Any
    name: Any
    value: Any
    look: Callable[[Any, Any], Any]
    geometry: Any

    def is_unchanged(self) -> bool:
        """Return whether it is still the same object, or an equal constant."""
        try:
            found = self.look(self.owner, self.name)
        except (UnclearCode, AttributeError, LookupError, TypeError, ValueError):
            return False
        if found is self.value:
            return bool(geometry_of(found) == self.geometry)
        return type(found) is type(self.value) and type(found) in CONSTANTS and found == self.value


def of_library(owner: Any, name: str) -> Any:
    """Return an attribute of torch or NumPy."""
    return getattr(owner, name)


def plain_attribute(owner: Any, name: str) -> Any:
    """Return an attribute that reading does not compute. Raises UnclearCode for properties, methods and whatever else may."""
    kind = type(owner)
    reads: Any = kind.__getattribute__
    is_plain = kind is types.SimpleNamespace or reads is object.__getattribute__
    if not is_plain or not hasattr(owner, "__dict__"):
        raise UnclearCode
    of_class = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _MISSING)
    if hasattr(type(of_class), "__get__"):
        raise UnclearCode
    found = vars(owner).get(name, of_class)
    if found is _MISSING:
        raise UnclearCode
    return found


def in_globals(owner: dict[str, Any], name: str) -> Any:
    """Return a global or builtin name's value."""
    return owner[name] if name in owner else vars(builtins)[name]


def in_cell(cell: types.CellType, name: str) -> Any:
    """Return the value of a closure's variable. Raises ValueError if it has none."""
    return cell.cell_contents


def at_key(owner: Any, key: Any) -> Any:
    """Return an item of a dict, list or tuple."""
    return owner[key]


def geometry_of(value: Any) -> Any:
    """Return what may change in an array without its becoming another object."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return value.shape, value.layout
        return value.shape, value.stride(), value.dtype, value.device, value.data_ptr(), value.requires_grad
    return (value.shape, value.strides, value.dtype) if isinstance(value, np.ndarray) else None
