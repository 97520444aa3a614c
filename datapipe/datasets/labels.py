"""Labels of another library's dataset, accepted only if they are certain to be what torch would get."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.core.errors import OptionError

_AS_IT_IS = (lambda label: label).__code__.co_code


def class_numbers(labels: Sequence[object], what: str) -> NDArray[np.int64]:
    """Return the (n,) labels. Raises OptionError unless each is exactly an int: torch keeps the types of all others."""
    others = set(map(type, labels)) - {int}
    if others:
        raise OptionError(f"{what} returns a {min(kind.__name__ for kind in others)}, which is not a class number")
    try:
        return np.array(labels, np.int64)
    except OverflowError as exc:
        raise OptionError(f"{what} returns an int beyond 64 bits, which is not a class number") from exc


def relabelled(labels: NDArray[np.int64], mapping: Any, what: str) -> NDArray[np.int64]:
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
    return class_numbers(values, what)[places]


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
