"""Check arguments: each function returns the value in its plain form, or raises OptionError that names the argument."""

from __future__ import annotations

import errno
import itertools
import math
import operator
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.errors import OptionError

_SHOWN = 1 << 128  # numbers below it are shown


def whole_number(value: Any, name: str, *, least: int | None = None, most: int | None = None) -> int:
    """Return `value` as an int; accepts numpy's integers, which JSON would not."""
    try:
        number = int(operator.index(value))
    except TypeError as exc:
        raise OptionError(f"{name} is {value!r:.60}; it must be a whole number") from exc
    if least is not None and number < least:
        raise OptionError(f"{name} is {_shown(number)}; it must be at least {least}")
    if most is not None and number > most:
        raise OptionError(f"{name} is {_shown(number)}; it must be at most {most}")
    return number


def _shown(number: int) -> str:
    return f"{number}" if abs(number) < _SHOWN else "a huge number"


def real_number(value: Any, name: str, *, most: float | None = None) -> float:
    """Return `value` as a finite float; a text is none."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError) as exc:
        raise OptionError(f"{name} is {value!r:.60}; it must be a number") from exc
    if not math.isfinite(number):
        raise OptionError(f"{name} is {number}; it must be finite")
    if most is not None and number > most:
        raise OptionError(f"{name} is {number:g}; it must be at most {most:g}")
    return number


def names_or_none(value: Any, name: str) -> tuple[str, ...] | None:
    """Return `value`, a list of names, as a tuple; None if it is None."""
    if value is None:
        return None
    names = None if isinstance(value, (str, bytes)) or not isinstance(value, Iterable) else tuple(value)
    if names is None or not all(isinstance(one, str) for one in names):
        raise OptionError(f"{name} is {value!r:.60}; it must be a list of names")
    return names


def items_of(values: Any, name: str, *, most: int) -> tuple[Any, ...]:
    """Return the items of an iterable, at most so many; more are not asked for."""
    try:
        found = tuple(itertools.islice(values, most + 1))
    except TypeError as exc:
        raise OptionError(f"{name} is {values!r:.60}; it must be a list") from exc
    if len(found) > most:
        raise OptionError(f"{name} has more than {most:,} items; pass fewer")
    return found


def path_name(value: Any, name: str) -> str:
    """Return `value` as a str that can be the path of a file, whether it exists or not."""
    try:
        text: str = os.fspath(value)
        if not isinstance(text, str):
            raise TypeError
        os.lstat(text)
    except TypeError as exc:
        raise OptionError(f"{name} is {value!r:.60}; it must be a path: a str or a Path") from exc
    except ValueError as exc:  # NUL, and unpaired surrogates other than those that stand for bytes
        raise OptionError(f"{name} is {text!r:.60}, which cannot be a file name; check it") from exc
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            raise OptionError(f"{name} is {text[:40]!r}..., which cannot be a file name: it is too long; check it") from exc
    return text


def callable_or_none(value: Any, name: str) -> Any:
    """Return `value` if it is callable or None."""
    if value is not None and not callable(value):
        raise OptionError(f"{name} is {value!r:.60}; it must be a function, or None")
    return value


def iterable_or_none(value: Any, name: str) -> Any:
    """Return `value` if it is iterable or None."""
    if value is not None and not hasattr(value, "__iter__"):
        raise OptionError(f"{name} is {value!r:.60}; it must be an iterable, or None")
    return value


def positions_of(values: Any, giver: str) -> NDArray[np.int64]:
    """Return (n,) positions in a dataset. Refuses a mask: as positions it would mean the samples 0 and 1."""
    try:
        array = np.asarray(values if hasattr(values, "__array__") or not isinstance(values, Iterable) else list(values))
    except (TypeError, ValueError) as exc:
        raise OptionError(f"{giver} gave {values!r:.60}; it must give whole numbers, positions in the dataset") from exc
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        remedy = "; for a mask pass numpy.flatnonzero(mask)" if array.dtype.kind == "b" else ""
        raise OptionError(f"{giver} gave {values!r:.60}; it must give whole numbers, positions in the dataset{remedy}")
    return array.astype(np.int64)
