"""Write and read sidecars: the index of one shard, an Arrow IPC file that is memory-mapped.

Columns: `id` int64, `key` binary, `source` binary (path of the source file, relative, as the file
system spells it), `label` int64 (-1: none), `height` and `width` int32 (0: unknown), and for each
field F: `F.encoding` string, `F.offset` int64 and `F.nbytes` int64 (bytes within the shard),
`F.crc32c` uint32 with `F.has_crc` bool. If raw pixels lie without a header, the schema's metadata has one for all of
them, `datapipe.prefix.F` in hex. One record batch, uncompressed, so columns are views of the map.

A field whose values are compressed together with those of other samples is addressed by rows: `F.offset` is the
row in the shard, `F.nbytes` the approximate size of its value, and the metadata has `datapipe.rows.F`, the field's name in
the shard, and `datapipe.index.row_groups`, a JSON list of the rows at which row groups begin, and of their number.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.core import arrow_maps, atomic
from datapipe.core.errors import FormatError, MissingDataError, StorageError
from datapipe.index.manifest import ShardInfo

SIDECAR_SUFFIX = ".index.arrow"
ROW_NBYTES = 32  # least size of a sample: four numbers, and the ends of two texts
_PREFIX = "datapipe.prefix."
_ROWS = "datapipe.rows."
_ROW_GROUPS = "datapipe.index.row_groups"
_NO_LABEL = -1
_MAX_NBYTES = 1 << 61  # so that the sum of an offset and a size fits 63 bits


@dataclass(frozen=True, slots=True)
class FieldExtent:
    """Where one field of one sample lies in its shard, and its checksum."""

    encoding: str  # "jpeg", "png", "npy", ... or "" if unknown
    offset: int  # bytes
    nbytes: int
    crc32c: int | None  # None: not computed


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """Where one field of all samples of a shard lies, in the order of its rows."""

    offset: NDArray[np.int64]  # (n,) bytes from the start of the shard; rows, if `column` is given
    nbytes: NDArray[np.int64]  # (n,); for rows the approximate size of a value, 0 if unknown
    prefix: bytes = b""  # bytes that belong before those of every sample
    column: str | None = None  # the name in the shard of a field that is addressed by rows
    encoding: str = ""  # as of `FieldExtent`


@dataclass(slots=True)
class SidecarRows:
    """Rows to be written to a sidecar, in the order in which the shard holds the samples.

    The extents of a field are given sample by sample, by `append`, or all at once, by `add_column`.
    """

    field_names: tuple[str, ...]
    ids: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    sources: list[bytes] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)  # (height, width) pixels; (0, 0) unknown
    extents: dict[str, list[FieldExtent]] = field(default_factory=dict)
    prefixes: dict[str, bytes] = field(default_factory=dict)  # by field, bytes that belong before those of every sample
    columns: dict[str, FieldColumn] = field(default_factory=dict)  # by field, those that were added as a whole
    row_groups: tuple[int, ...] = ()  # rows at which row groups begin, and their number; if a field is addressed by them
    classes: tuple[str, ...] | None = None  # names by label, if the shard has them; not kept in the sidecar
    lacking: dict[str, int] = field(default_factory=dict)  # by omitted field, how many samples lack it; not kept either
    unread: dict[str, str] = field(default_factory=dict)  # by name in the shard, why it is no field; not kept either

    def __post_init__(self) -> None:
        self.extents = {name: [] for name in self.field_names}

    def __len__(self) -> int:
        return len(self.ids)

    def append(
        self, *, id: int, key: bytes, source: bytes, label: int, size: tuple[int, int], extents: dict[str, FieldExtent]
    ) -> None:
        """Add one sample."""
        self.ids.append(id)
        self.keys.append(key)
        self.sources.append(source)
        self.labels.append(label)
        self.sizes.append(size)
        for name in self.extents:
            self.extents[name].append(extents[name])

    def add_samples(self, keys: Iterable[bytes], labels: Iterable[int]) -> None:
        """Add the samples of a shard that others wrote, of which no more is known; their ids are row numbers."""
        for row, (key, label) in enumerate(zip(keys, labels, strict=True)):
            self.append(id=row, key=key, source=b"", label=label, size=(0, 0), extents={})

    def add_column(self, name: str, column: FieldColumn) -> None:
        """Add a field of all samples."""
        self.field_names = (*self.field_names, name)
        self.columns[name] = column
        if column.prefix:
            self.prefixes[name] = column.prefix

    def to_table(self, shard_name: str) -> pa.Table:
        """Return the rows as an Arrow table with the metadata of a sidecar."""
        sizes = np.array(self.sizes, np.int32).reshape(-1, 2)
        columns: dict[str, pa.Array] = {
            "id": _numbers(np.array(self.ids, np.int64)),
            "key": _byte_strings(self.keys, pa.binary()),
            "source": _byte_strings(self.sources, pa.binary()),
            "label": _numbers(np.array(self.labels, np.int64)),
            "height": _numbers(sizes[:, 0]),
            "width": _numbers(sizes[:, 1]),
        }
        for name in self.field_names:
            columns |= self._of_column(name) if name in self.columns else self._of_extents(name)
        metadata: dict[str, str | bytes] = {
            "datapipe.index.sidecar": "1",
            "datapipe.shard": shard_name,
            "datapipe.fields": ",".join(self.field_names),
        }
        metadata |= {_PREFIX + name: prefix.hex() for name, prefix in self.prefixes.items()}
        for name, found in self.columns.items():
            if found.column is not None:
                metadata[_ROWS + name] = found.column.encode(errors="surrogateescape")
        if self.row_groups:
            metadata[_ROW_GROUPS] = json.dumps(self.row_groups)
        return pa.table(columns).replace_schema_metadata(metadata)

    def _of_extents(self, name: str) -> dict[str, pa.Array]:
        extents = self.extents[name]
        return {
            f"{name}.encoding": _byte_strings([extent.encoding.encode() for extent in extents], pa.string()),
            f"{name}.offset": _numbers(np.array([extent.offset for extent in extents], np.int64)),
            f"{name}.nbytes": _numbers(np.array([extent.nbytes for extent in extents], np.int64)),
            f"{name}.crc32c": _numbers(np.array([extent.crc32c or 0 for extent in extents], np.uint32)),
            f"{name}.has_crc": _numbers(np.array([extent.crc32c is not None for extent in extents], np.uint8)),
        }

    def _of_column(self, name: str) -> dict[str, pa.Array]:
        found, num = self.columns[name], len(self)
        return {
            f"{name}.encoding": _byte_strings([found.encoding.encode()] * num, pa.string()),
            f"{name}.offset": _numbers(found.offset),
            f"{name}.nbytes": _numbers(found.nbytes),
            f"{name}.crc32c": _numbers(np.zeros(num, np.uint32)),
            f"{name}.has_crc": _numbers(np.zeros(num, np.uint8)),
        }


# pa.array, and to_numpy of its result, import pandas if that is installed: 50 MB and a third of a second for each
# process. So arrays are made of buffers here, and read as buffers.


def _numbers(values: NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def _byte_strings(values: list[bytes], kind: pa.DataType) -> pa.Array:
    ends = np.array([0, *itertools.accumulate(map(len, values))], np.int32)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))])


def write_sidecar(path: Path, rows: SidecarRows, shard_name: str) -> str:
    """Write the index of `shard_name` atomically. Returns the sha256 of its bytes, in hex. Equal rows give equal bytes."""
    sink = pa.BufferOutputStream()
    table = rows.to_table(shard_name).combine_chunks()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    with atomic.atomic_writer(path) as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=64)
def _schema(field_names: tuple[str, ...]) -> pa.Schema:
    """Return the columns of a sidecar with these fields."""
    columns = {
        "id": pa.int64(), "key": pa.binary(), "source": pa.binary(), "label": pa.int64(), "height": pa.int32(),
        "width": pa.int32(),
    }  # fmt: skip
    parts = {"encoding": pa.string(), "offset": pa.int64(), "nbytes": pa.int64(), "crc32c": pa.uint32(), "has_crc": pa.uint8()}
    for name in field_names:
        columns |= {f"{name}.{part}": kind for part, kind in parts.items()}
    return pa.schema(list(columns.items()))


class Sidecar:
    """One opened sidecar. Columns are numpy views of the memory map. Immutable, and so thread-safe.

    `shard`: the manifest's entry of its shard; extents must lie within the shard, and the bytes must have the manifest's hash,
    so that an opened sidecar gives what was written. Opening reads all of it once, at more than a gigabyte a second. Raises
    MissingDataError, StorageError or FormatError on opening.
    """

    __slots__ = (
        "_buffers", "field_names", "heights", "ids", "labels", "num_samples", "path", "prefixes", "row_columns",
        "row_groups", "widths",
    )  # fmt: skip

    def __init__(self, path: Path, *, shard: ShardInfo | None = None) -> None:
        self.path = path
        data = self._map()
        if shard is not None and shard.index_sha256 and hashlib.sha256(data).hexdigest() != shard.index_sha256:
            raise self._error("differs from what was written (sha256)")
        try:
            metadata = self._read(data)
            self._take_metadata(metadata)
        except arrow_maps.DAMAGE as exc:
            if isinstance(exc, FormatError):
                raise
            raise self._error(f"not an Arrow file, or damaged ({exc})") from exc
        if shard is not None and self.num_samples != shard.num_samples:
            raise self._error(f"has {self.num_samples} samples, the manifest says {shard.num_samples}")
        self._check_values(_MAX_NBYTES if shard is None else shard.nbytes)

    def _map(self) -> pa.Buffer:
        try:
            data = arrow_maps.map_file(self.path)
        except FileNotFoundError as exc:
            raise MissingDataError(f"{self.path}: index is missing; `datapipe verify` lists everything that is") from exc
        except OSError as exc:
            if exc.errno is None:
                raise self._error(f"cannot be mapped ({exc})") from exc
            raise StorageError(exc.errno, f"{self.path}: cannot be read ({exc.strerror})") from exc
        return data

    def _read(self, data: pa.Buffer) -> dict[bytes, bytes]:
        """Read the columns and return the schema's metadata. Raises FormatError or `arrow_maps.DAMAGE`."""
        if not arrow_maps.is_file(data):
            raise self._error("not an Arrow file, or cut off")
        with pa.ipc.open_stream(arrow_maps.stream_of(data)) as reader:
            metadata = reader.schema.metadata or {}
            if metadata.get(b"datapipe.index.sidecar") != b"1":
                raise self._error("not a datapipe index")
            self.field_names = tuple(metadata[b"datapipe.fields"].decode().split(","))
            if not reader.schema.equals(_schema(self.field_names)):
                raise self._error("its columns are not those of an index")
            batches = list(reader)
        if len(batches) > 1:
            raise self._error(f"has {len(batches)} record batches, but an index has one")
        for batch in batches:
            batch.validate(full=True)
        self.num_samples = sum(batch.num_rows for batch in batches)
        self._buffers = dict(zip(reader.schema.names, batches[0].columns, strict=True)) if self.num_samples else {}
        if any(column.null_count for column in self._buffers.values()):
            raise self._error("has null values")
        return metadata

    def _take_metadata(self, metadata: dict[bytes, bytes]) -> None:
        self.ids = self._fixed("id", np.int64)
        self.labels = self._fixed("label", np.int64)
        self.heights = self._fixed("height", np.int32)
        self.widths = self._fixed("width", np.int32)
        self.prefixes = self._read_prefixes(metadata)
        self.row_columns = self._read_row_columns(metadata)
        self.row_groups = self._read_row_groups(metadata)

    def _check_values(self, data_nbytes: int) -> None:
        """Raise FormatError for values that no valid index has. `data_nbytes`: the size of the shard."""
        if not self.num_samples:
            return
        if int(self.labels.min()) < _NO_LABEL:
            raise self._error(f"a label is {int(self.labels.min())}, the least is {_NO_LABEL}")
        for name in self.field_names:
            offsets, sizes = self.offsets(name), self.nbytes(name)
            by_rows = name in self.row_columns
            most = self.num_samples - 1 if by_rows else data_nbytes
            is_sound = offsets.min() >= 0 and sizes.min() >= 0 and offsets.max() <= most and sizes.max() <= _MAX_NBYTES
            if not is_sound or (not by_rows and int((offsets + sizes).max()) > data_nbytes):
                end = "rows" if by_rows else f"{data_nbytes} bytes"
                raise self._error(f"field {name!r} of a sample reaches beyond the {end} of its shard")

    def _error(self, what: str) -> FormatError:
        return FormatError(f"{self.path}: {what}; index or convert again")

    def _read_prefixes(self, metadata: dict[bytes, bytes]) -> dict[str, bytes]:
        """Return, by field, bytes that belong before those of every extent; fields without any are left out."""
        spelled = {name: metadata.get((_PREFIX + name).encode(), b"") for name in self.field_names}
        try:
            return {name: bytes.fromhex(text.decode()) for name, text in spelled.items() if text}
        except ValueError as exc:
            raise self._error(f"a prefix is not hexadecimal ({exc})") from exc

    def _read_row_columns(self, metadata: dict[bytes, bytes]) -> dict[str, str]:
        """Return, by field that is addressed by rows, its name in the shard."""
        called = {name: metadata.get((_ROWS + name).encode()) for name in self.field_names}
        return {name: text.decode(errors="surrogateescape") for name, text in called.items() if text is not None}

    def _read_row_groups(self, metadata: dict[bytes, bytes]) -> NDArray[np.int64]:
        """Return (g + 1,) rows at which row groups begin, and the number of rows; empty if no field is addressed by them."""
        try:
            starts = np.array(json.loads(metadata.get(_ROW_GROUPS.encode(), b"[]")), np.int64)
        except (ValueError, TypeError, OverflowError, RecursionError) as exc:
            raise self._error(f"row groups are not a list of rows ({exc})") from exc
        is_sound = starts.ndim == 1 and (len(starts) > 1 or not self.row_columns)
        if not is_sound or (len(starts) and (starts[0] or starts[-1] != self.num_samples or (np.diff(starts) < 0).any())):
            raise self._error(f"row groups do not cover its {self.num_samples} samples")
        return starts

    def _fixed(self, name: str, dtype: type) -> NDArray[Any]:
        if not self.num_samples:
            return np.empty(0, dtype)
        column = self._buffers[name]
        values: NDArray[Any] = np.frombuffer(
            column.buffers()[1], dtype, self.num_samples, column.offset * np.dtype(dtype).itemsize
        )
        return values

    def offsets(self, name: str) -> NDArray[np.int64]:
        """Return (n,) bytes from the start of the shard, or rows if `row_columns` has the field."""
        return self._fixed(f"{name}.offset", np.int64)

    def nbytes(self, name: str) -> NDArray[np.int64]:
        """Return (n,) sizes in bytes; approximate ones if `row_columns` has the field."""
        return self._fixed(f"{name}.nbytes", np.int64)

    def crc32c(self, name: str) -> NDArray[np.uint32]:
        """Return (n,) checksums, valid where `has_crc` is 1."""
        return self._fixed(f"{name}.crc32c", np.uint32)

    def has_crc(self, name: str) -> NDArray[np.uint8]:
        """Return (n,) 1 if the checksum was computed."""
        return self._fixed(f"{name}.has_crc", np.uint8)

    def encoding(self, name: str, row: int) -> str:
        """Return the encoding of a sample's field; "" if unknown."""
        return str(self._buffers[f"{name}.encoding"][row].as_py())

    def key(self, row: int) -> bytes:
        """Return the key of a sample."""
        return bytes(self._buffers["key"][row].as_py())

    def source(self, row: int) -> bytes:
        """Return the source file of a sample, relative, as the file system spells it."""
        return bytes(self._buffers["source"][row].as_py())
