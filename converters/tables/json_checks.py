"""Check a line of JSON lines in Python: what is wrong with it, and in which member.

Arrow reads whole blocks, stops at the first fault, and does not see others: integers that become infinite, two members that
would be one column, brackets so deep that it crashes. Lines are checked here where Arrow stopped, or where values look
suspicious.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from converters.tables import Kinds, Member, Misfit, Place
from converters.tables.kinds import (
    BOOLEAN,
    EXACT,
    LIST,
    NUMBER,
    OBJECT,
    REAL,
    SPELLED,
    STRING,
    WHOLE,
    called,
    columns_of,
    together,
)

BRACKETS = b"[{]}"
MAX_DEPTH = 64  # of objects and lists within each other

_INT64 = (-(2**63), 2**63 - 1)
_LONGEST = 400  # digits of an integer; a longer one is beyond float64
_NOT_BRACKETS = bytes(set(range(256)) - set(BRACKETS))
_SHOWN = 60


class _Members(list[tuple[str, Any]]):
    """The members of an object, in order; keys may come twice."""


class _TooLarge(str):
    """A number beyond float64, as text."""

    __slots__ = ()


def _integer(text: str) -> int | _TooLarge:
    # Python itself refuses to convert texts of thousands of digits
    return int(text) if len(text) < _LONGEST and math.isfinite(float(text)) else _TooLarge(text)


def _float(text: str) -> float | _TooLarge:
    value = float(text)
    return value if math.isfinite(value) else _TooLarge(text)


def parsed(line: bytes) -> _Members | Misfit:
    """Return the object of a line, or what is wrong with it."""
    if is_deep(line):
        return Misfit("", f"objects and lists lie more than {MAX_DEPTH} deep in each other")
    try:
        value = json.loads(line.decode(), object_pairs_hook=_Members, parse_int=_integer, parse_float=_float)
    except UnicodeDecodeError as exc:
        return Misfit("", f"not UTF-8 at byte {exc.start + 1} of the line")
    except (ValueError, RecursionError) as exc:
        return Misfit("", f"not JSON: {str(exc).splitlines()[0]}")
    return value if isinstance(value, _Members) else Misfit("", f"{type(value).__name__}, not an object")


def is_deep(line: bytes) -> bool:
    """Return True if brackets lie too deep in each other; those within strings count too."""
    brackets = line.translate(None, _NOT_BRACKETS)
    if len(brackets) <= MAX_DEPTH:
        return False
    letters = np.frombuffer(brackets, np.uint8)
    steps = np.where((letters == BRACKETS[0]) | (letters == BRACKETS[1]), 1, -1)
    return int(np.cumsum(steps).max()) > MAX_DEPTH


class KindChecks:
    """Compares the kinds of values with those of earlier lines, which `kinds` are at first.

    `unsigned`: members whose integers may go beyond int64. `may_round`: told the name of a column, whether its integers may be
    rounded.
    """

    def __init__(self, kinds: Kinds, *, unsigned: Container[Place], may_round: Callable[[str], bool]) -> None:
        self.kinds: dict[Place, str] = dict(kinds)
        self._columns: dict[str, Place] = dict(columns_of(kinds))
        self._unsigned, self._may_round = unsigned, may_round

    def misfit(self, line: _Members) -> Misfit | None:
        """Return what is wrong with a line; if nothing is, its kinds count for later ones."""
        kinds: dict[Place, str] = {}
        columns: dict[str, Place] = {}
        for place, value, misfit in _values(line, ()):
            found = misfit or self._misfit(place, value, kinds, columns)
            if found is not None:
                return found
        self.kinds |= kinds
        self._columns |= columns
        return None

    def _misfit(self, place: Place, value: Any, kinds: dict[Place, str], columns: dict[str, Place]) -> Misfit | None:
        name = called(place)
        if isinstance(value, _TooLarge):
            return Misfit(name, f"{name}: {_short(value)} is beyond the numbers of float64")
        if isinstance(value, str) and not _is_text(value):
            return Misfit(name, f"{name}: {value!r:.{_SHOWN}} has half of a surrogate pair, which is no text")
        if value is None:
            return None
        if self._is_beyond(place, value):
            return Misfit(name, f"{name}: {_short(value)} is beyond int64; name its type in --schema")
        before = kinds.get(place) or self.kinds.get(place)
        kind = self._kind_of(place, value, before)
        joined = kind if before is None else together(before, kind)
        if joined is None:
            shown = SPELLED[kind] if kind in (OBJECT, LIST) else f"{_short(value)} is {SPELLED[kind]}"
            where = f"where earlier values, or --schema, have {SPELLED[before or kind]}"
            if {before, kind} == {WHOLE, REAL}:
                where += "; name its type in --schema if float64 may round it"
            return Misfit(name, f"{name}: {shown}, {where}", is_relative=True)
        kinds[place] = joined
        if None not in place and kind != OBJECT:
            member = columns.get(name) or self._columns.get(name) or columns.setdefault(name, place)
            if member != place:
                both = f"{_spelled(place)} and {_spelled(member)}"
                return Misfit(name, f"{name}: {both} would be one column of this name; rename one", is_relative=True)
        return None

    def _is_beyond(self, place: Place, value: Any) -> bool:
        if not isinstance(value, int) or _INT64[0] <= value <= _INT64[1] or place in self._unsigned:
            return False
        return not self._may_round(called(place))

    def _kind_of(self, place: Place, value: Any, before: str | None) -> str:
        match value:
            case bool():
                return BOOLEAN
            case str():
                return STRING
            case _Members():
                return OBJECT
            case list():
                return LIST
        if self._may_round(called(place)):
            return NUMBER
        if isinstance(value, float):
            return REAL
        if before == REAL and int(float(value)) == value:
            return REAL
        return WHOLE if abs(value) > EXACT else NUMBER


def _values(value: Any, place: Place) -> Iterator[tuple[Place, Any, Misfit | None]]:
    """Yield the values within a value, with their places, and what is wrong with their keys."""
    if isinstance(value, _Members):
        seen = set[str]()
        for key, inner in value:
            here, misfit = (*place, key), None
            if key in seen:
                misfit = Misfit(called(here), f"{called(here)}: the key comes twice in one object")
            elif not _is_text(key):
                misfit = Misfit("", f"the key {key!r:.{_SHOWN}} has half of a surrogate pair, which is no text")
            seen.add(key)
            yield here, inner, misfit
            yield from _values(inner, here)
    elif isinstance(value, list):
        for inner in value:
            here = (*place, None)
            yield here, inner, None
            yield from _values(inner, here)


def number_misfit(line: _Members, floats: Mapping[Place, pa.DataType]) -> Misfit | None:
    """Return which number of a line becomes infinite in its column. `floats`: the types of floating columns."""
    for place, value in _numbers(line):
        name, kind = called(place), floats.get(place)
        if isinstance(value, _TooLarge):
            return Misfit(name, f"{name}: {_short(value)} is beyond the numbers of float64")
        if kind is None or not math.isfinite(value):
            continue
        with np.errstate(over="ignore"):
            if np.isinf(np.float64(value).astype(kind.to_pandas_dtype())):
                return Misfit(name, f"{name}: {_short(value)} is beyond the numbers of {kind}")
    return None


def may_be_rounded(line: _Members, floats: Container[Place]) -> Iterator[str]:
    """Yield the names of floating columns in which a line has an integer that float64 may round."""
    for place, value in _numbers(line):
        if place in floats and isinstance(value, int) and abs(value) > EXACT:
            yield called(place)


def _numbers(line: _Members) -> Iterator[tuple[Place, int | float | _TooLarge]]:
    for place, value, _ in _values(line, ()):
        if isinstance(value, (int, float, _TooLarge)) and not isinstance(value, bool):
            yield place, value


def value_of(line: _Members, member: Member) -> Any:
    """Return the value of a member, None if the line lacks it."""
    return next((_plain(value) for place, value, _ in _values(line, ()) if place == member), None)


def _plain(value: Any) -> Any:
    if isinstance(value, _Members):
        return {key: _plain(inner) for key, inner in value}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, _TooLarge) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _spelled(place: Place) -> str:
    return " of ".join(f"the member {part!r:.{_SHOWN}}" for part in reversed(place))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
