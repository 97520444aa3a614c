"""Labels of somebody else's dataset, and what is made of them: taken over only where it is certain what torch would get."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import OptionError

_AS_IT_IS = (lambda label: label).__code__.co_code


def class_numbers(labels: Sequence[object], whose: str) -> NDArray[np.int64]:
    """(n,) the labels. Raises OptionError unless each is an int and nothing else: torch keeps the types of all others."""
    others = set(map(type, labels)) - {int}
    if others:
        raise OptionError(f"{whose} gives a {min(kind.__name__ for kind in others)}, which is no class number")
    try:
        return np.array(labels, np.int64)
    except OverflowError as exc:
        raise OptionError(f"{whose} gives an int beyond 64 bits, which is no class number") from exc


def relabelled(labels: NDArray[np.int64], mapping: Any, whose: str) -> NDArray[np.int64]:
    """(n,) what `mapping` makes of the labels, looked up once for each class.

    Raises OptionError for any mapping but a look-up in a dict, list or tuple: a function may give another label each time.
    """
    if leaves_as_it_is(mapping):
        return labels
    if not _looks_up(mapping):
        raise OptionError(f"{whose} is Python code of its own; a dict's `__getitem__` or `get` can be seen through")
    distinct, places = np.unique(labels, return_inverse=True)
    try:
        values = [mapping(label) for label in distinct.tolist()]
    except LookupError as exc:
        raise OptionError(f"{whose} has nothing for some of the labels") from exc
    return class_numbers(values, whose)[places]


def leaves_as_it_is(mapping: Any) -> bool:
    """Whether an int comes out as it went in: None, `int`, or a function that does nothing but return its argument."""
    if mapping is None or mapping is int:
        return True
    if type(mapping) is not types.FunctionType:
        return False
    code = mapping.__code__
    return code.co_argcount == 1 and code.co_code == _AS_IT_IS


def _looks_up(mapping: Any) -> bool:
    owner = getattr(mapping, "__self__", None)
    return type(owner) in (dict, list, tuple) and getattr(mapping, "__name__", "") in ("__getitem__", "get")
