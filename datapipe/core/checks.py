"""Arguments of several rooms, checked: each gives the value in its plain form, or raises OptionError that names the argument."""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.core.errors import OptionError


def whole_number(value: Any, name: str, *, least: int | None = None) -> int:
    """The int that `value` is, numpy's integers included: states are JSON."""
    try:
        number = operator.index(value)
    except TypeError as exc:
        raise OptionError(f"{name} is {value!r:.60}; it must be a whole number") from exc
    if least is not None and number < least:
        raise OptionError(f"{name} is {number}; it must be at least {least}")
    return number


def real_number(value: Any, name: str) -> float:
    """The finite float that `value` is."""
    try:
        number = float(value)
    except (TypeError, ValueError) as exc:
        raise OptionError(f"{name} is {value!r:.60}; it must be a number") from exc
    if not np.isfinite(number):
        raise OptionError(f"{name} is {number}; it must be finite")
    return number


def path_name(value: Any, name: str) -> str:
    """The path that `value` is, as a str: one that a file can have, whether there is one or not."""
    try:
        text: str = os.fspath(value)
        if not isinstance(text, str):
            raise TypeError
        os.lstat(text)
    except TypeError as exc:
        raise OptionError(f"{name} is {value!r:.60}; it must be a path: a str or a Path") from exc
    except ValueError as exc:  # NUL, and halves of characters; bytes that are not UTF-8 are none of these
        raise OptionError(f"{name} is {text!r:.60}, which no file can be called; check it") from exc
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            raise OptionError(f"{name} is {text[:40]!r}..., which no file can be called: it is too long; check it") from exc
    return text


def callable_or_none(value: Any, name: str) -> Any:
    """`value`, if it can be called or is None."""
    if value is not None and not callable(value):
        raise OptionError(f"{name} is {value!r:.60}; it must be a function, or None")
    return value


def iterable_or_none(value: Any, name: str) -> Any:
    """`value`, if it can be iterated over or is None."""
    if value is not None and not hasattr(value, "__iter__"):
        raise OptionError(f"{name} is {value!r:.60}; it must be something to iterate over, or None")
    return value


def positions_of(values: Any, whose: str) -> NDArray[np.int64]:
    """(n,) positions in a dataset. A mask is refused: as positions it would mean the samples 0 and 1."""
    try:
        array = np.asarray(values if hasattr(values, "__array__") or not isinstance(values, Iterable) else list(values))
    except (TypeError, ValueError) as exc:
        raise OptionError(f"{whose} gave {values!r:.60}; it must give whole numbers, positions in the dataset") from exc
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        remedy = "; of a mask these are numpy.flatnonzero(mask)" if array.dtype.kind == "b" else ""
        raise OptionError(f"{whose} gave {values!r:.60}; it must give whole numbers, positions in the dataset{remedy}")
    return array.astype(np.int64)
