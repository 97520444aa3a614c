"""Collect the fields of shards while they are scanned: those that all samples of a shard have, and those of all shards.

Only at the end is it known which fields all samples have, so the place of a value is kept as three numbers.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import IMAGE_FIELD, NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.stored import PLAIN
from datapipe.containers.field_names import IMAGE, LABEL, field_name
from datapipe.containers.labels import class_labels
from datapipe.core.printable import get_logger, listed
from datapipe.errors import FormatError
from datapipe.index.sidecar import FieldColumn, SidecarRows

_ENCODINGS = {
    FieldKind.TEXT: "text",
    FieldKind.JSON: "json",
    FieldKind.ARRAY: "npy",
    FieldKind.BYTES: "bytes",
}  # images may be any
_NUM_NAMED = 8  # fields in a message
_NEEDED = frozenset((IMAGE, LABEL))

logger = get_logger(__name__)


class FieldExtents:
    """The places of one field's bytes, of ascending rows of the shard. Not thread-safe.

    `nbytes`: their sizes. `prefix`: bytes that belong before those of every sample. `codecs`: by row, how they are stored, where
    not as they are.
    """

    __slots__ = ("_offsets", "_rows", "codecs", "nbytes", "prefix", "spec")

    def __init__(self, spec: FieldSpec, places: Iterable[tuple[int, int, int]] = ()) -> None:
        self.spec, self.prefix = spec, b""
        self._rows, self._offsets, self.nbytes = array("q"), array("q"), array("q")
        self.codecs: dict[int, str] = {}
        for place in places:
            self.add(*place)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> NDArray[np.int64]:
        """(n,) rows of the samples that have the field."""
        return np.array(self._rows, np.int64)

    def add(self, row: int, offset: int, nbytes: int, codec: str = PLAIN) -> None:
        """Add the bytes of the sample in that row."""
        if codec:
            self.codecs[row] = codec
        self._rows.append(row)
        self._offsets.append(offset)
        self.nbytes.append(nbytes)

    def column(self, *, encoding: str) -> FieldColumn:
        """Return the places for a sidecar, if every row has the field."""
        codecs = [self.codecs.get(row, PLAIN) for row in self._rows] if self.codecs else ()
        places = np.array(self._offsets, np.int64), np.array(self.nbytes, np.int64)
        return FieldColumn(*places, self.prefix, encoding=encoding, codecs=codecs)

    def parted(self, chosen: NDArray[np.bool_]) -> tuple[FieldExtents, FieldExtents]:
        """Return the chosen places, and the others."""
        parts = FieldExtents(self.spec), FieldExtents(self.spec)
        if chosen.all():
            return self, parts[1]
        for is_chosen, row, offset, nbytes in zip(chosen.tolist(), self._rows, self._offsets, self.nbytes, strict=True):
            parts[0 if is_chosen else 1].add(row, offset, nbytes, self.codecs.get(row, PLAIN))
        return parts

    def joined(self, *others: FieldExtents) -> FieldExtents:
        """Return the places of all of them, under this one's name."""
        if not any(map(len, others)):
            return self
        places = [place for one in (self, *others) for place in zip(one._rows, one._offsets, one.nbytes, strict=True)]
        joined = FieldExtents(self.spec, sorted(places))
        for one in (self, *others):
            joined.codecs |= one.codecs
        return joined


def rows_of_extents(
    fields: Mapping[str, FieldExtents], keys: Sequence[bytes], labels: Sequence[int], *, label_encoding: str
) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Return the rows of a shard whose values lie in one piece each, and their fields. `fields`: by name."""
    rows = SidecarRows(())
    rows.add_samples(keys, labels)
    for name, field in fields.items():
        rows.add_column(name, field.column(encoding=label_encoding if name == LABEL else _ENCODINGS.get(field.spec.kind, "")))
    return rows, tuple(FieldSpec(name, field.spec.kind) for name, field in fields.items())


def rows_of_images(
    images: FieldColumn,
    keys: Iterable[bytes],
    labels: Iterable[int | None] | None,
    *,
    classes: tuple[str, ...] | None,
    where: str,
    field: FieldSpec = IMAGE_FIELD,
) -> tuple[SidecarRows, list[FieldSpec]]:
    """Return rows with the image and, unless it is None, the label of every sample, and these fields.

    `classes`: names by label, if they are known. `field`: what there is instead of images, if it is something else.
    Raises FormatError, naming `where`, for labels that are no class numbers.
    """
    checked = [NO_LABEL] * len(images.offset) if labels is None else class_labels(labels, where, classes=classes)
    rows = SidecarRows((), classes=classes)
    rows.add_column(field.name, images)
    rows.add_samples(keys, checked)
    return rows, [field, *([] if labels is None else [FieldSpec(LABEL, FieldKind.LABEL)])]


def add_field(rows: SidecarRows, called: str, kind: FieldKind, column: FieldColumn) -> FieldSpec:
    """Add a field under a free name made of what it is called in the shard; return it."""
    spec = FieldSpec(free_name(field_name(called), rows.field_names), kind)
    rows.add_column(spec.name, column)
    return spec


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


class CommonFields:
    """Collects the fields of one shard after the other, to find those that all samples of all shards have. Not thread-safe.

    If some shards lack the image or the label, the set is refused, as training on it would not be what was meant; any other
    field that some samples lack is left out, which is reported once for the whole set.
    """

    def __init__(self) -> None:
        self._num_samples = self._num_shards = 0
        self._kinds: dict[str, set[FieldKind]] = {}
        self._num_whole: dict[str, int] = {}  # shards in which all samples have the field
        self._num_having: dict[str, int] = {}  # samples that have it
        self._unread: dict[str, str] = {}

    def add(self, rows: SidecarRows, fields: tuple[FieldSpec, ...], where: str) -> None:
        """Add a shard named `where`. Raises FormatError if only it, or only the others, have the image or the label."""
        needed = {spec.name for spec in fields} & _NEEDED
        before = self._kinds.keys() & _NEEDED
        if self._num_shards and needed != before:
            had = ", ".join(self._kinds)
            has = ", ".join(spec.name for spec in fields)
            raise FormatError(f"{where}: has fields {has}, the shards before it {had}; open them separately")
        self._num_shards += 1
        self._num_samples += len(rows)
        self._unread |= rows.unread
        for spec in fields:
            self._kinds.setdefault(spec.name, set()).add(spec.kind)
            self._num_whole[spec.name] = self._num_whole.get(spec.name, 0) + 1
            self._num_having[spec.name] = self._num_having.get(spec.name, 0) + len(rows)
        for name, num in rows.lacking.items():
            self._kinds.setdefault(name, set())
            self._num_having[name] = self._num_having.get(name, 0) + len(rows) - num

    def fields(self) -> tuple[FieldSpec, ...]:
        """Return the fields of every sample, in the order in which they came."""
        return tuple(FieldSpec(name, next(iter(kinds))) for name, kinds in self._kinds.items() if self._is_common(name))

    def say_what_is_left_out(self, where: str) -> None:
        """Log one warning of the fields that are left out, and one note of columns that cannot be fields."""
        left_out = [
            f"{name!r}, which {self._num_samples - self._num_having[name]} of {self._num_samples} samples lack"
            if self._num_having[name] < self._num_samples
            else f"{name!r}, of other kinds in other shards ({', '.join(sorted(kind.value for kind in kinds))})"
            for name, kinds in self._kinds.items()
            if not self._is_common(name)
        ]
        if left_out:
            logger.warning("%s: left out: %s", where, listed(left_out, most=_NUM_NAMED, separator="; "))
        if self._unread:
            unread = [f"{name!r} ({why})" for name, why in self._unread.items()]
            logger.info("%s: not read: %s", where, listed(unread, most=_NUM_NAMED, separator="; "))

    def _is_common(self, name: str) -> bool:
        return self._num_whole.get(name) == self._num_shards and len(self._kinds[name]) == 1
