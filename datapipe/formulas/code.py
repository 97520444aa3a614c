"""Read the statements of a function, certain that they are those that run: their source compiles to the same code."""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Iterator

from datapipe.core.parsing import parse

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
