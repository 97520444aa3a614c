"""Derive, from its code, what a `__getitem__` that only takes parts of arrays returns: a formula of the index.

The code is evaluated once with an unknown index. Whatever else it does (a branch on values, a loop, a call that is not in the
list below, an assignment to an attribute) makes it unclear, and the Dataset is left as it is.
"""

from __future__ import annotations

import ast
import inspect
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from datapipe.formulas.operations import (
    FUNCTIONS,
    Known,
    Method,
    arithmetic,
    call_method,
    constant_key,
    constant_of,
    is_int,
    position_of,
)
from datapipe.formulas.reads import (
    CONSTANTS,
    Read,
    at_key,
    geometry_of,
    in_cell,
    in_globals,
    of_library,
    plain_attribute,
    statements_of,
)
from datapipe.formulas.values import Position, RowValues, UnclearCode, rows_of_array, windows_of_array

_LIBRARIES = (torch, np)
_NOT_PLAIN = sum(
    (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS, inspect.CO_GENERATOR, inspect.CO_COROUTINE, inspect.CO_ASYNC_GENERATOR)
)


@dataclass(frozen=True, slots=True)
class RowFormula:
    """The contents of samples by their index: `leaves` in a container, a `form` (None: a single leaf), with `names` if a dict."""

    function: types.FunctionType
    form: type[tuple[Any, ...]] | type[list[Any]] | type[dict[Any, Any]] | None
    names: tuple[str, ...]
    leaves: tuple[RowValues | Position, ...]
    reads: tuple[Read, ...]
    indices: range  # of samples that lie in the arrays as a whole

    @property
    def nbytes(self) -> int:
        """The bytes of a sample."""
        return sum(8 if isinstance(leaf, Position) else math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.leaves)

    @property
    def apart(self) -> list[RowValues]:
        """The leaves that do not overlap with others, as inputs and targets do, but for a few bytes."""
        found: list[RowValues] = []
        for leaf in self.leaves:
            if isinstance(leaf, RowValues) and not any(leaf.is_next_to(other) for other in found):
                found.append(leaf)
        return found

    def is_unchanged(self, dataset: Any) -> bool:
        """Return whether the formula still says what the dataset does."""
        return type(dataset).__getitem__ is self.function and all(read.is_unchanged() for read in self.reads)

    def take(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
        """Return the batch of these samples, each one of `self.indices`, as default_collate makes it."""
        found = [
            torch.tensor(leaf.numbers_at(indices)) if isinstance(leaf, Position) else leaf.take(indices) for leaf in self.leaves
        ]
        if self.form is dict:
            return dict(zip(self.names, found, strict=True))
        return found[0] if self.form is None else found


def formula_of(dataset: Any) -> RowFormula | None:
    """Return what the samples of a dataset are, by its `__getitem__`; None if that is not certain."""
    function = type(dataset).__getitem__
    if not isinstance(function, types.FunctionType) or function.__defaults__ or function.__kwdefaults__:
        return None
    code = function.__code__
    takes_index = code.co_argcount == 2 and not code.co_kwonlyargcount and not code.co_flags & _NOT_PLAIN
    body = statements_of(function) if takes_index else None
    if body is None:
        return None
    try:
        evaluation = _Evaluation(function, dataset)
        result = evaluation.run(body)
        return _formula(function, result, tuple(evaluation.reads.values()))
    except UnclearCode:
        return None


def _formula(function: types.FunctionType, result: Any, reads: tuple[Read, ...]) -> RowFormula:
    form = type(result) if isinstance(result, tuple | list | dict) else None
    leaves = list(result.values()) if isinstance(result, dict) else list(result) if form else [result]
    leaves = [Position(0, leaf.value) if is_int(leaf) else leaf for leaf in leaves]
    if not any(isinstance(leaf, RowValues) for leaf in leaves) or not all(
        isinstance(leaf, RowValues | Position) for leaf in leaves
    ):
        raise UnclearCode
    ranges = [leaf.indices for leaf in leaves if isinstance(leaf, RowValues)]
    indices = range(max(one.start for one in ranges), min(one.stop for one in ranges))
    return RowFormula(function, form, tuple(result) if isinstance(result, dict) else (), tuple(leaves), reads, indices)


class _Evaluation:
    """One evaluation of a function, whose values are `Known`, `Position`, `RowValues`, `Method`, and containers of them."""

    def __init__(self, function: types.FunctionType, dataset: Any) -> None:
        self.reads: dict[tuple[int, Any], Read] = {}
        self._function = function
        names = function.__code__.co_varnames
        self._locals: dict[str, Any] = {names[0]: Known(dataset), names[1]: Position(1, 0)}

    def run(self, body: Sequence[ast.stmt]) -> Any:
        """Return what the statements return; None if they only go on."""
        for statement in body:
            match statement:
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    continue
                case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign(target, self.value(value))
                case ast.If(test=test, body=then, orelse=otherwise):
                    result = self.run(then if self._truth(test) else otherwise)
                    if result is not None:
                        return result
                case ast.Return(value=ast.expr() as value):
                    return self.value(value)
                case _:
                    raise UnclearCode
        return None

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._locals[name] = value
            case ast.Tuple(elts=targets) if isinstance(value, tuple) and len(targets) == len(value):
                for one, part in zip(targets, value, strict=True):
                    self._assign(one, part)
            case _:
                raise UnclearCode

    def _truth(self, test: ast.expr) -> bool:
        found = self.value(test)
        if isinstance(found, Known) and type(found.value) in CONSTANTS:
            return bool(found.value)
        raise UnclearCode

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        match node:
            case ast.Constant(value=constant) if type(constant) in CONSTANTS:
                return Known(constant)
            case ast.Name(id=name):
                return self._locals[name] if name in self._locals else self._outer(name)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self.value(owner), name)
            case ast.Subscript(value=owner, slice=key):
                return self._subscript(self.value(owner), key)
            case ast.BinOp(left=left, op=operation, right=right):
                return arithmetic(operation, self.value(left), self.value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return arithmetic(ast.Mult(), Known(-1), self.value(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Known(not self._truth(operand))
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as operation], comparators=[ast.Constant(value=None)]):
                found = self.value(left)
                is_none = isinstance(found, Known) and found.value is None
                return Known(is_none == isinstance(operation, ast.Is))
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as operation], comparators=[right]):
                is_equal = constant_of(self.value(left)) == constant_of(self.value(right))
                return Known(is_equal == isinstance(operation, ast.Eq))
            case ast.IfExp(test=test, body=then, orelse=otherwise):
                return self.value(then if self._truth(test) else otherwise)
            case ast.Tuple(elts=parts):
                return tuple(self.value(part) for part in parts)
            case ast.List(elts=parts):
                return [self.value(part) for part in parts]
            case ast.Dict(keys=keys, values=values):
                return {_name_in(key): self.value(value) for key, value in zip(keys, values, strict=True)}
            case ast.Call(func=called, args=args, keywords=keywords):
                return self._call(self.value(called), args, keywords)
        raise UnclearCode

    def _outer(self, name: str) -> Known:
        """Return what a name means outside of the function."""
        code = self._function.__code__
        if name in code.co_freevars:
            return self._read(self._function.__closure__[code.co_freevars.index(name)], name, in_cell)  # type: ignore[index]
        if name in code.co_varnames or name in code.co_cellvars:
            raise UnclearCode
        return self._read(self._function.__globals__, name, in_globals)

    def _read(self, owner: Any, name: Any, look: Callable[[Any, Any], Any]) -> Known:
        try:
            value = look(owner, name)
        except (AttributeError, LookupError, TypeError, ValueError):
            raise UnclearCode from None
        if look is not of_library:
            self.reads[id(owner), name] = Read(owner, name, value, look, geometry_of(value))
        return Known(value)

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, RowValues):
            return Method(owner, name)
        if not isinstance(owner, Known):
            raise UnclearCode
        return self._read(owner.value, name, of_library if any(owner.value is one for one in _LIBRARIES) else plain_attribute)

    def _subscript(self, owner: Any, key: ast.expr) -> Any:
        parts = [self._key(part) for part in (key.elts if isinstance(key, ast.Tuple) else [key])]
        if isinstance(owner, RowValues):
            return owner.part(tuple(map(constant_key, parts)))
        if isinstance(owner, Known) and type(owner.value) in (dict, list, tuple) and len(parts) == 1:
            return self._read(owner.value, constant_of(parts[0]), at_key)
        if not isinstance(owner, Known) or not isinstance(owner.value, np.ndarray | torch.Tensor):
            raise UnclearCode
        match parts[0]:
            case slice(start=start, stop=stop, step=None) if stop is not None:
                found = windows_of_array(owner.value, position_of(start or Position(0, 0)), position_of(stop))
            case slice():
                raise UnclearCode
            case place:
                found = rows_of_array(owner.value, position_of(place))
        axes: tuple[int | slice, ...] = () if not isinstance(parts[0], slice) else (slice(None),)
        return found.part((*axes, *map(constant_key, parts[1:]))) if len(parts) > 1 else found

    def _key(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.Slice):
            return self.value(node)
        return slice(*(None if part is None else self.value(part) for part in (node.lower, node.upper, node.step)))

    def _call(self, called: Any, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> Any:
        given = [self.value(arg) for arg in args]
        named = {str(one.arg): self.value(one.value) for one in keywords}
        if None in (one.arg for one in keywords) or any(isinstance(arg, ast.Starred) for arg in args):
            raise UnclearCode
        if isinstance(called, Method):
            return call_method(called.values, called.name, given, named)
        for function, call in FUNCTIONS:
            if isinstance(called, Known) and called.value is function:
                try:
                    return call(*given, **named)
                except TypeError:  # other arguments than those that are known
                    raise UnclearCode from None
        raise UnclearCode


def _name_in(key: ast.expr | None) -> str:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    raise UnclearCode
