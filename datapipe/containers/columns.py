"""Collect the fields of a shard while it is scanned: whose bytes lie where.

Only at the end is it known which fields all samples have, so each place is kept as three numbers.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldSpec
from datapipe.containers.field_names import field_name


class FieldExtents:
    """The places of one field's bytes, of ascending rows of the shard. Not thread-safe."""

    __slots__ = ("_nbytes", "_offsets", "_rows", "spec")

    def __init__(self, spec: FieldSpec, places: Iterable[tuple[int, int, int]] = ()) -> None:
        self.spec = spec
        self._rows, self._offsets, self._nbytes = array("q"), array("q"), array("q")
        for place in places:
            self.add(*place)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> NDArray[np.int64]:
        """(n,) rows of the samples that have the field."""
        return np.array(self._rows, np.int64)

    @property
    def is_uniform(self) -> bool:
        """True if all of its places are of one size."""
        return len(set(self._nbytes)) == 1

    def add(self, row: int, offset: int, nbytes: int) -> None:
        """Add the bytes of the sample in that row."""
        self._rows.append(row)
        self._offsets.append(offset)
        self._nbytes.append(nbytes)

    def at(self, row: int) -> tuple[int, int]:
        """Return (offset, nbytes) of a row, if every row has the field."""
        return self._offsets[row], self._nbytes[row]

    def parted(self, chosen: NDArray[np.bool_]) -> tuple[FieldExtents, FieldExtents]:
        """Return the chosen places, and the others."""
        parts = FieldExtents(self.spec), FieldExtents(self.spec)
        if chosen.all():
            return self, parts[1]
        for is_chosen, *place in zip(chosen.tolist(), self._rows, self._offsets, self._nbytes, strict=True):
            parts[0 if is_chosen else 1].add(*place)
        return parts

    def joined(self, *others: FieldExtents) -> FieldExtents:
        """Return the places of all of them, under this one's name."""
        if not any(map(len, others)):
            return self
        places = [place for one in (self, *others) for place in zip(one._rows, one._offsets, one._nbytes, strict=True)]
        return FieldExtents(self.spec, sorted(places))


def further_fields(columns: Mapping[str, FieldExtents], num_rows: int) -> tuple[dict[str, FieldExtents], dict[str, int]]:
    """Return by name the fields that all rows have; and those that only some have, with the number of rows that lack them.

    `columns`: by their names in the shard. Columns of one field are joined (`depth.png` in some samples, `depth.jpg` in others),
    unless a sample has several of them or their kinds differ: then each is a field under its full name.
    """
    groups: dict[str, list[str]] = {}
    for called, column in columns.items():
        groups.setdefault(column.spec.name, []).append(called)
    fields: dict[str, FieldExtents] = {}
    for name, group in groups.items():
        first = columns[group[0]]
        whole = first.joined(*(columns[called] for called in group[1:])) if len(group) > 1 else first
        is_one = len({columns[called].spec.kind for called in group}) == 1 and len(np.unique(whole.rows)) == len(whole)
        for called in [group[0]] if is_one else group:
            full = name if is_one else free_name(field_name(called), (groups.keys() - {name}) | fields.keys())
            column = whole if is_one else columns[called]
            column.spec = FieldSpec(full, column.spec.kind)
            fields[full] = column
    lacking = {name: num_rows - len(column) for name, column in fields.items() if len(column) < num_rows}
    return {name: column for name, column in fields.items() if name not in lacking}, lacking


def free_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, with a number appended if it is taken."""
    names = itertools.chain([name], (f"{name[:28]}_{number}" for number in range(2, 2 + len(taken))))
    return next(one for one in names if one not in taken)
