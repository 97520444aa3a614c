"""Parquet shards as Hugging Face's `datasets` writes and reads them, with each field's bytes in one piece.

Samples are collected until they fill a row group, which pyarrow then writes, so memory does not grow with the shard. The
offset of each value is read from the finished file and checked against the checksums.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from converters.writers import ShardStream, StoredField, StoredSample, WrittenShard, add_sample, sample_key, suffix_of
from datapipe.codecs.field_values import LABEL_FIELD, FieldKind, FieldSpec
from datapipe.containers import parquet as form
from datapipe.containers.field_names import AUDIO_FIELD, FEATURES
from datapipe.containers.parquet.footer import read_footer
from datapipe.containers.parquet.pages import UnaddressableError, byte_arrays, plain_values
from datapipe.containers.parquet.thrift_compact import DamagedError
from datapipe.errors import DecodeError, FormatError
from datapipe.index.arrow_buffers import array_of
from datapipe.index.sidecar import FieldExtent, SidecarRows

_LABEL_ENCODING = "int64"  # little-endian
_ROW_NBYTES = 64  # assumed size of a row besides its fields: names, levels, labels


class Writer:
    """A Parquet file being written; see `converters.writers.ShardWriter`."""

    def __init__(self, path: Path, *, fields: tuple[FieldSpec, ...], classes: Sequence[str] | None) -> None:
        self._path = path
        self._fields = fields
        self._classes = classes
        self._stream = ShardStream(path)
        self._sink = _Sink(self._stream)
        self._writer: pq.ParquetWriter | None = None  # opened with the first row group, whose samples determine the schema
        self._group = _RowGroup(fields)
        self._stored: dict[str, list[tuple[str, int, int]]] = {spec.name: [] for spec in fields}  # encoding, nbytes, crc32c
        self._rows = SidecarRows(())  # without extents until the end

    def check(self, sample: StoredSample) -> None:
        for spec in self._fields:
            if spec.name != LABEL_FIELD.name:
                _refuse_unfit(sample, spec)

    def append(self, sample: StoredSample) -> None:
        nbytes = _ROW_NBYTES + sum(len(stored.data) for stored in sample.fields.values())
        if len(self._group) and not self._group.has_room(nbytes):
            self._write_group()
        self._group.append(sample, nbytes)
        for name, stored in self._stored.items():
            if name == LABEL_FIELD.name:
                stored.append((_LABEL_ENCODING, 8, crc32c(np.array(sample.label, "<i8").tobytes())))
            else:
                one = sample.fields[name]
                stored.append((one.encoding, len(one.data), crc32c(one.data)))
        add_sample(self._rows, sample, {})

    def finish(self) -> WrittenShard:
        if len(self._group) or self._writer is None:
            self._write_group()
        assert self._writer is not None
        self._writer.close()
        self._stream.flush()
        self._rows.field_names, self._rows.extents = tuple(self._stored), self._extents()
        self._stream.finish()
        return WrittenShard(self._stream.position, self._stream.sha256.hexdigest(), self._rows, {})

    def abandon(self) -> None:
        self._sink.is_lost = True  # otherwise pyarrow would complete the file
        self._writer = None
        self._stream.abandon()

    def _write_group(self) -> None:
        if self._writer is None:
            raw = {name for name, stored in self._stored.items() if stored and stored[0][0] == "npy"}
            schema = shard_schema(self._fields, self._classes, raw=raw)
            self._writer = pq.ParquetWriter(
                self._sink,
                schema,
                compression="none",
                use_dictionary=False,
                write_statistics=[form.LABEL],
                write_page_index=True,
                data_page_size=form.PAGE_NBYTES,
                write_batch_size=1,  # the size of a page is checked after this many rows
            )
        if len(self._group):
            self._writer.write_table(self._group.to_table(self._writer.schema), row_group_size=len(self._group))
        self._group = _RowGroup(self._fields)

    def _extents(self) -> dict[str, list[FieldExtent]]:
        """Return, by field, where each sample's value is: read back from the file and compared with what was to be written."""
        extents: dict[str, list[FieldExtent]] = {}
        with self._path.open("rb") as plain, mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as data:
            data.madvise(mmap.MADV_RANDOM)
            for name, stored in self._stored.items():
                found = list(_places(self._path, name, data))
                if not _are_as_written(plain.fileno(), found, stored):
                    raise FormatError(f"{self._path}: field {name!r} differs when read back; {_NOT_AS_EXPECTED}")
                extents[name] = [
                    FieldExtent(encoding, offset, nbytes, checksum)
                    for (encoding, nbytes, checksum), (offset, _) in zip(stored, found, strict=True)
                ]
        return extents


def _are_as_written(descriptor: int, found: list[tuple[int, int]], stored: list[tuple[str, int, int]]) -> bool:
    return len(found) == len(stored) and all(
        nbytes == size and crc32c(os.pread(descriptor, size, offset)) == checksum
        for (_, nbytes, checksum), (offset, size) in zip(stored, found, strict=True)
    )


_NOT_AS_EXPECTED = f"pyarrow {pa.__version__} writes pages differently, or the disk is damaged; convert to another format"


def _places(path: Path, name: str, data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each value of a field."""
    try:
        footer = read_footer(data)
        column = next(one for one in footer.columns if one.path in (name, f"{name}.{form.BYTES}"))
        for chunk, _ in footer.chunks(column):
            for values in plain_values(data, chunk):
                if name == LABEL_FIELD.name:
                    yield from ((values.start + 8 * row, 8) for row in range(values.num))
                else:
                    yield from byte_arrays(data, values)
    except (DamagedError, UnaddressableError) as exc:
        raise FormatError(f"{path}: field {name!r} is {exc} as written; {_NOT_AS_EXPECTED}") from exc


def _refuse_unfit(sample: StoredSample, spec: FieldSpec) -> None:
    stored = sample.fields[spec.name]
    if len(stored.data) > form.MAX_FIELD_NBYTES:
        raise DecodeError(
            f"field {spec.name!r} of {len(stored.data)} bytes exceeds the {form.MAX_FIELD_NBYTES} of a page"
            " of Parquet; leave it out, or convert to webdataset or hdf5"
        )
    if spec.kind in TEXTS:
        try:
            stored.data.decode()
        except UnicodeDecodeError as exc:
            raise DecodeError(
                f"field {spec.name!r} is not UTF-8 ({exc.reason} at byte {exc.start}), as a text in Parquet"
                " must be; leave it out, or convert to another format"
            ) from exc


# -- rows --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Bytes:
    """Byte strings for an Arrow array, concatenated, so that they are held once.

    Arrays are made of buffers, since `pa.array` would import pandas if it is installed.
    """

    data: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=lambda: [0])

    def append(self, value: bytes) -> None:
        self.data += value
        self.ends.append(len(self.data))

    def to_array(self, kind: pa.DataType) -> pa.Array:
        ends = pa.py_buffer(np.array(self.ends, np.int32))
        return pa.Array.from_buffers(kind, len(self.ends) - 1, [None, ends, pa.py_buffer(self.data)])


class _RowGroup:
    """The samples of one row group."""

    def __init__(self, fields: tuple[FieldSpec, ...]) -> None:
        self._fields = fields
        self._values = {spec.name: _Bytes() for spec in fields if spec.name != LABEL_FIELD.name}
        self._paths = {spec.name: _Bytes() for spec in fields if _has_path(spec)}
        self._labels: list[int] = []
        self._keys = _Bytes()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._labels)

    def has_room(self, nbytes: int) -> bool:
        return self._nbytes + nbytes <= form.ROW_GROUP_NBYTES and len(self) < form.MAX_ROW_GROUP_ROWS

    def append(self, sample: StoredSample, nbytes: int) -> None:
        for name, values in self._values.items():
            values.append(sample.fields[name].data)
        for name, paths in self._paths.items():
            paths.append(_file_name(sample, sample.fields[name]))
        self._labels.append(sample.label)
        self._keys.append(sample_key(sample.id).encode())
        self._nbytes += nbytes

    def to_table(self, schema: pa.Schema) -> pa.Table:
        arrays = [self._array(spec, schema.field(spec.name).type) for spec in self._fields]
        return pa.Table.from_arrays([*arrays, self._keys.to_array(pa.string())], schema=schema)

    def _array(self, spec: FieldSpec, kind: pa.DataType) -> pa.Array:
        if spec.name == LABEL_FIELD.name:
            return array_of(np.array(self._labels, np.int64))
        if _has_path(spec):
            parts = [self._values[spec.name].to_array(pa.binary()), self._paths[spec.name].to_array(pa.string())]
            return pa.StructArray.from_arrays(parts, fields=list(kind))
        return self._values[spec.name].to_array(kind)


def _file_name(sample: StoredSample, stored: StoredField) -> bytes:
    """Return the source file's name without folders, with the suffix of the bytes; bytes that are not UTF-8 are escaped."""
    name = os.path.splitext(os.path.basename(sample.source))[0] or sample_key(sample.id).encode()
    return name.decode(errors="backslashreplace").encode() + b"." + suffix_of(stored.encoding).encode()


class _Sink:
    """A file object for pyarrow: passes writes to the shard's stream until that fails or is abandoned."""

    closed = False

    def __init__(self, stream: ShardStream) -> None:
        self._stream = stream
        self.is_lost = False

    def write(self, data: bytes) -> int:
        if not self.is_lost:
            try:
                self._stream.put(data)
            except BaseException:
                self.is_lost = True  # pyarrow continues to write what follows
                raise
        return len(data)

    def tell(self) -> int:
        return self._stream.position

    def flush(self) -> None:
        """Do nothing: the stream is flushed at the end."""

    def close(self) -> None:
        """Do nothing: the shard closes the stream."""


IMAGES = (FieldKind.IMAGE, FieldKind.MASK)
TEXTS = (FieldKind.TEXT, FieldKind.JSON)

_FILE_TYPE = pa.struct([pa.field(form.BYTES, pa.binary()), pa.field(form.PATH, pa.string())])


def _has_path(spec: FieldSpec) -> bool:
    """Return True for fields that are stored with the name of their file: images and sound."""
    return spec.kind in IMAGES or spec == AUDIO_FIELD


def shard_schema(fields: Sequence[FieldSpec], classes: Sequence[str] | None, *, raw: set[str]) -> pa.Schema:
    """Return columns for `fields` in their order, and the key.

    `classes`: names by label, none if labels have none. `raw`: fields of images that are `.npy` files, which Hugging Face's
    Image does not decode; for `datasets` they are bytes.
    """
    types = {spec.name: _arrow_type(spec) for spec in fields}
    features = {spec.name: _feature(spec, classes, is_raw=spec.name in raw) for spec in fields}
    features[form.KEY] = _value("string")
    metadata = {FEATURES: json.dumps({"info": {"features": features}})}
    return pa.schema([*types.items(), (form.KEY, pa.string())], metadata=metadata)


def _arrow_type(spec: FieldSpec) -> pa.DataType:
    if spec.name == LABEL_FIELD.name:
        return pa.int64()
    if _has_path(spec):
        return _FILE_TYPE
    return pa.string() if spec.kind in TEXTS else pa.binary()


def _feature(spec: FieldSpec, classes: Sequence[str] | None, *, is_raw: bool) -> dict[str, Any]:
    if spec.name == LABEL_FIELD.name:
        return {"names": list(classes), "_type": "ClassLabel"} if classes else _value("int64")
    if _has_path(spec):
        kind = "Audio" if spec == AUDIO_FIELD else "Image"
        return {form.BYTES: _value("binary"), form.PATH: _value("string")} if is_raw else {"_type": kind}
    return _value("string" if spec.kind in TEXTS else "binary")


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}
