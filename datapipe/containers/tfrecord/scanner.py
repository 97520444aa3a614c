"""Scan TFRecord files of `tf.train.Example`: where the image lies in each, and its label.

Reads what TensorFlow, TFDS and others write, whatever the order of the features. The image is the feature
`image/encoded`, else `image`, else the only one whose bytes begin like an image; the label `image/class/label`,
else `label`. Only lengths and small values are read. Checksums of lengths are tested; those of whole
frames are not, as that would require reading all of the data.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from datapipe.codecs.field_values import NO_LABEL, FieldKind, FieldSpec
from datapipe.codecs.npy import npy_header
from datapipe.codecs.probe import encoding_of
from datapipe.containers.columns import FieldExtents, free_name, rows_of_extents
from datapipe.containers.field_names import HEAD_NBYTES, IMAGE, LABEL, field_name, is_mask_name, kind_of_bytes, names_among
from datapipe.containers.labels import class_label, label_names
from datapipe.containers.mapped import mapped
from datapipe.containers.tfrecord import layout as form
from datapipe.containers.tfrecord.example import ExampleFeature, parse_example
from datapipe.core.printable import get_logger
from datapipe.errors import FormatError
from datapipe.index.sidecar import SidecarRows

_IMAGE_NAMES = (form.IMAGE, "image")
_KEY_NAMES = (form.KEY, "image/filename", "image/source_id", "tfds_id", "file_name")
_MAX_KEY = 1024  # bytes
_MAX_FEATURES = 1000  # of different names in a shard
_LOOKED_AT = 64  # bytes of a feature: enough to recognise an image
_ABOUT_THE_IMAGE = (form.FORMAT, form.HEIGHT, form.WIDTH, "image/colorspace", "image/channels")  # no fields of their own
logger = get_logger(__name__)


def index_shard(path: Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Scan one file; ids are row numbers. Fields: the image, the label, and others that all samples have.

    Every sample needs an image; either every sample has a label (an integer) or none. Features that cannot be fields are
    recorded in `lacking` and `unread` of the rows. Raises MissingDataError, StorageError or FormatError, naming file and sample.
    """
    with mapped(path, "a TFRecord") as data:
        return _index_frames(data, str(path))


def scan_frames(path: Path) -> Iterator[tuple[int, int]]:
    """Yield start and size, in bytes and with heads and tails, of every frame of a file. Raises as `index_shard` does."""
    if path.exists() and not path.stat().st_size:  # the result of a conversion that left out every sample
        return
    with mapped(path, "a TFRecord") as data:
        for start, nbytes in _data_of_frames(data, str(path)):
            yield start - form.HEAD_NBYTES, nbytes + form.HEAD_NBYTES + form.TAIL_NBYTES


def _data_of_frames(data: mmap.mmap, where: str) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each frame's data."""
    position, size = 0, len(data)
    while position < size:
        head = data[position : position + form.HEAD_NBYTES]
        if len(head) < form.HEAD_NBYTES:
            raise FormatError(f"{where}: cut within the head of a frame at byte {position}; get the file again")
        nbytes, checksum = struct.unpack("<QI", head)
        if form.masked_crc32c(head[:8]) != checksum:
            raise FormatError(f"{where}: {_strange_head(head) if not position else _DAMAGED.format(position)}")
        end = position + form.HEAD_NBYTES + nbytes + form.TAIL_NBYTES
        if end > size:
            raise FormatError(f"{where}: frame at byte {position} reaches to {end}, the file ends at {size}: it was cut")
        yield position + form.HEAD_NBYTES, nbytes
        position = end


_DAMAGED = "the length at byte {} does not fit its checksum: damaged; get the file again"


def _strange_head(head: bytes) -> str:
    """Return why a file does not begin like a TFRecord."""
    is_gzip, is_zlib = head[:2] == b"\x1f\x8b", head[0] == 0x78 and int.from_bytes(head[:2], "big") % 31 == 0
    if is_gzip or is_zlib:
        form_name, remedy = (
            ("gzip", "decompress it, `gunzip < OLD > NEW`") if is_gzip else ("zlib", "write it again without compression")
        )
        return f"compressed ({form_name}), so no sample can be read without those before it; {remedy}"
    return "not a TFRecord (the first length does not fit its checksum), or damaged"


def _index_frames(data: mmap.mmap, where: str) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    keys: list[bytes] = []
    labels: list[int] = []
    image, label = FieldExtents(FieldSpec(IMAGE, FieldKind.IMAGE)), FieldExtents(FieldSpec(LABEL, FieldKind.LABEL))
    others: FurtherFeatures | None = None
    image_name, label_name = "", None
    for number, (start, nbytes) in enumerate(_data_of_frames(data, where)):
        place = f"{where}: sample {number}"
        features = parse_example(data, start, nbytes, place)
        if others is None:
            image_name, label_name = _image_name(data, features, place), _label_name(features, place)
            others = FurtherFeatures(data, frozenset((image_name, label_name, *_KEY_NAMES, *_ABOUT_THE_IMAGE)))
        found = _only_value(features, image_name, "bytes", place)
        image.add(number, found.offset, found.nbytes)
        labels.append(NO_LABEL)
        if label_name:
            found = _only_value(features, label_name, "int64", place)
            label.add(number, found.offset, found.nbytes)
            labels[-1] = class_label(found.value, place, found="label is", expected="a class number")
        others.add(number, features)
        keys.append(_key(data, features, number))
    if others is None:
        raise FormatError(f"{where}: no samples")
    further = others.fields(len(keys))
    columns = {IMAGE: image} | ({LABEL: label} if label_name else {}) | further
    rows, specs = rows_of_extents(columns, keys, labels, label_encoding="varint")
    rows.lacking, rows.unread = others.lacking, others.unread
    return rows, specs


def _image_name(data: mmap.mmap, features: dict[str, ExampleFeature], place: str) -> str:
    """Return the feature that holds the image, by name or else by content, judged by the first sample."""
    for name in names_among(_IMAGE_NAMES, features):
        if features[name].kind == "bytes":
            return name
    found = [name for name, feature in features.items() if feature.kind == "bytes" and _is_image(data, feature)]
    found = [name for name in found if not is_mask_name(name)] or found
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} features hold images ({', '.join(sorted(found))})" if found else "no feature holds an encoded image"
    raise FormatError(
        f"{place}: {what}; looked for 'image/encoded' or 'image', or one feature of image bytes (has: {_listed(features)})"
    )


def _is_image(data: mmap.mmap, feature: ExampleFeature) -> bool:
    start = data[feature.offset : feature.offset + min(feature.nbytes, _LOOKED_AT)]
    return feature.num_values == 1 and encoding_of(start) is not None


def _label_name(features: dict[str, ExampleFeature], place: str) -> str | None:
    for name in label_names("tfrecord", features):
        feature = features[name]
        if feature.kind == "int64" and feature.num_values == 1:
            return name
        logger.warning("%s: %r is no single integer (%s); the set is read without labels", place, name, feature)
    return None


def _only_value(features: dict[str, ExampleFeature], name: str, kind: str, place: str) -> ExampleFeature:
    feature = features.get(name)
    if feature is None:
        raise FormatError(f"{place}: no feature {name!r} (has: {_listed(features)}), unlike the samples before it")
    if feature.kind != kind or feature.num_values != 1:
        raise FormatError(f"{place}: feature {name!r} holds {feature}, expected one value of type {kind}")
    return feature


def _key(data: mmap.mmap, features: dict[str, ExampleFeature], number: int) -> bytes:
    for name in _KEY_NAMES:
        feature = features.get(name)
        if feature and feature.kind == "bytes" and feature.num_values == 1 and 0 < feature.nbytes <= _MAX_KEY:
            return data[feature.offset : feature.offset + feature.nbytes]
    return b"%d" % number


def _listed(features: dict[str, ExampleFeature]) -> str:
    return ", ".join(sorted(features)) or "none"


class FurtherFeatures:
    """Collects the features besides the image and the label, sample by sample, and then returns the fields that they make.

    A single value of bytes is a field: a text if the name says so, else what its first bytes show (an image, a mask, an
    array), else bytes. Floats are a field if they lie in one piece and their number is the same in all samples: an array,
    with the header of a `.npy` file put before them when they are read. Integers, stored as varints, cannot be fields.
    """

    def __init__(self, data: mmap.mmap, passed_over: frozenset[str | None]) -> None:
        self.lacking: dict[str, int] = {}  # samples without it, by field that is left out; filled by `fields`
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
            if kind == "float" and len(set(column.nbytes)) > 1:
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
                column.prefix = npy_header((column.nbytes[0] // 4,), np.dtype("<f4"))
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
