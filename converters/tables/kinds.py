"""The kinds of the values of JSON: a column has that of its first value which is not null.

Whole numbers that float64 may round and floating numbers do not go together in a column; other numbers go with either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from converters.tables import Kinds, Member, Place

BOOLEAN, STRING, LIST, OBJECT = "boolean", "string", "list", "object"
NUMBER, WHOLE, REAL = "number", "whole", "real"  # small whole numbers; with large ones; with floating ones
EXACT = 2**53  # beyond it, float64 does not hold every integer
SPELLED = {
    BOOLEAN: "a boolean",
    STRING: "a string",
    LIST: "a list",
    OBJECT: "an object",
    NUMBER: "a number",
    WHOLE: "a whole number beyond 2^53",
    REAL: "a floating number",
}


def called(place: Place) -> str:
    """Return the name of the column of a member."""
    return ".".join(part for part in place if part is not None)


def together(one: str, other: str) -> str | None:
    """Return the kind of values of both; None if there is none."""
    if NUMBER in (one, other):
        found = other if one == NUMBER else one
        return found if found in (NUMBER, WHOLE, REAL) else None
    return one if one == other else None


def are_together(kinds: Kinds, others: Kinds) -> bool:
    """Return True if values of both may be in one table: no place has two kinds, no column is made of two members."""
    columns = columns_of(kinds)
    return all(place not in kinds or together(kinds[place], kind) is not None for place, kind in others.items()) and all(
        columns.get(name, member) == member for name, member in columns_of(others).items()
    )


def columns_of(kinds: Kinds) -> dict[str, Member]:
    """Return the members that are columns, by name."""
    return {
        called(place): place  # type: ignore[misc]  # without None
        for place, kind in kinds.items()
        if kind != OBJECT and None not in place
    }


def kinds_of(place: Place, kind: Any) -> Iterator[tuple[Place, str]]:
    """Yield the kinds of values of a type, of the elements within them and of the objects around them."""
    for length in range(1, len(place)):
        if place[length] is not None:
            yield place[:length], OBJECT
    if pa.types.is_list(kind):
        yield place, LIST
        yield from kinds_of((*place, None), kind.value_type)
    elif pa.types.is_boolean(kind):
        yield place, BOOLEAN
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        yield place, NUMBER
    elif not pa.types.is_null(kind):
        yield place, STRING


def kinds_in(place: Place, array: Any, may_round: Callable[[str], bool]) -> Iterator[tuple[Place, str]]:
    """Yield the kinds of the values of an array. `may_round`: told the name of a column, whether float64 may round integers."""
    kind = array.type
    if array.null_count == len(array) or pa.types.is_null(kind):
        return
    if pa.types.is_struct(kind):
        yield place, OBJECT
        for field, inner in zip(kind, array.flatten(), strict=True):
            yield from kinds_in((*place, field.name), inner, may_round)
    elif pa.types.is_list(kind):
        yield place, LIST
        yield from kinds_in((*place, None), array.flatten(), may_round)
    elif pa.types.is_boolean(kind):
        yield place, BOOLEAN
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        yield place, NUMBER if may_round(called(place)) else REAL if pa.types.is_floating(kind) else _of_integers(array)
    else:
        yield place, STRING


def _of_integers(array: Any) -> str:
    ends = pc.min_max(array).as_py()
    return WHOLE if ends["min"] < -EXACT or ends["max"] > EXACT else NUMBER


def floating_types(kinds: Mapping[Place, str]) -> dict[Member, Any]:
    """Return the types of the columns of floating numbers, and of lists of such."""
    found: dict[Member, Any] = {}
    for place, kind in kinds.items():
        if kind == REAL:
            member = tuple(part for part in place if part is not None)
            if place == member + (None,) * (len(place) - len(member)):  # not within objects in lists
                found[member] = pa.float64()
                for _ in range(len(place) - len(member)):
                    found[member] = pa.list_(found[member])
    return found
