"""Decide which features of an Example besides the image and the label are fields, and of which kind.

A single value of bytes is a field: a text if the name says so, else what its first bytes show (an image, a mask, an
array), else bytes. Floats are a field if they lie in one piece and their number is the same in all samples: an array, with the
header of a `.npy` file put before them when they are read. Integers, stored as varints, cannot be fields.
"""

from __future__ import annotations

import io
import mmap

import numpy as np

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.containers.columns import FieldExtents, free_name
from datapipe.containers.field_names import HEAD_NBYTES, field_name, kind_of_bytes
from datapipe.containers.tfrecord.example import ExampleFeature

_MAX_FEATURES = 1000  # of different names in a shard


class FurtherFeatures:
    """Collects the features of a shard, sample by sample, and then returns the fields that they make."""

    def __init__(self, data: mmap.mmap, passed_over: frozenset[str | None]) -> None:
        self.prefixes: dict[str, bytes] = {}  # by field, like `lacking`: filled by `fields`
        self.lacking: dict[str, int] = {}  # samples without it, by field that is left out
        self.unread: dict[str, str] = {}  # why not, by feature
        self._data = data
        self._passed_over = passed_over
        self._columns: dict[tuple[str, str], FieldExtents] = {}  # by name and kind of the feature

    def add(self, row: int, features: dict[str, ExampleFeature]) -> None:
        """Record where the features of a sample lie."""
        for name, feature in features.items():
            if name in self._passed_over or not feature.num_values:
                continue
            if reason := _unread(feature):
                self.unread.setdefault(name, reason)
                continue
            column = self._columns.get((name, feature.kind))
            if column is None:
                if len(self._columns) == _MAX_FEATURES:
                    self.unread.setdefault("...", f"features of more than {_MAX_FEATURES} names")
                    continue
                column = self._columns[name, feature.kind] = FieldExtents(self._spec(name, feature))
            column.add(row, feature.offset, feature.nbytes)

    def fields(self, num_rows: int) -> dict[str, FieldExtents]:
        """Return the fields that all samples have, by name, in the order of the features' names."""
        fields: dict[str, FieldExtents] = {}
        for name, kind in sorted(self._columns):
            column = self._columns[name, kind]
            if kind == "float" and not column.is_uniform:
                self.unread.setdefault(name, "floats, of different numbers per sample")
            if name in self.unread:
                continue
            field = free_name(field_name(name), fields.keys() | self.lacking.keys())
            if len(column) < num_rows:
                self.lacking[field] = num_rows - len(column)
                continue
            fields[field] = column
            column.spec = FieldSpec(field, column.spec.kind)
            if kind == "float":
                self.prefixes[field] = _float_header(column.at(0)[1] // 4)
        return fields

    def _spec(self, name: str, feature: ExampleFeature) -> FieldSpec:
        if feature.kind == "float":
            return FieldSpec(field_name(name), FieldKind.ARRAY)
        head = self._data[feature.offset : feature.offset + min(feature.nbytes, HEAD_NBYTES)]
        return FieldSpec(field_name(name), kind_of_bytes(name, head))


def _unread(feature: ExampleFeature) -> str | None:
    """Return why a feature with values cannot be a field; None if it can."""
    if feature.kind == "int64":
        return "integers"
    if feature.kind == "bytes":
        return "several values" if feature.num_values > 1 else None
    return None if feature.nbytes else "floats in several pieces"


def _float_header(num: int) -> bytes:
    """Return the header of a version 1 `.npy` file of `num` float32."""
    sink = io.BytesIO()
    np.lib.format.write_array_header_1_0(sink, {"descr": "<f4", "fortran_order": False, "shape": (num,)})
    return sink.getvalue()
