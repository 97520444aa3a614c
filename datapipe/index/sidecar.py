"""Write sidecars: the index of one shard, an Arrow IPC file that is memory-mapped.

Columns: `id` int64, `key` binary, `source` binary (path of the source file, relative, as the file
system spells it), `label` int64 (NO_LABEL: none), `height` and `width` int32 (0: unknown), and for each
field F: `F.encoding` string, `F.offset` int64 and `F.nbytes` int64 (bytes within the shard),
`F.crc32c` uint32 with `F.has_crc` bool. If raw pixels lie without a header, the schema's metadata has one for all of
them, `datapipe.prefix.F` in hex. One record batch, uncompressed, so columns are views of the map.

The metadata `datapipe.further.F` names further columns that a field has: `F.path` binary, the file that holds it, relative to
the dataset, where that is neither the shard nor, in a listing of files, `source` (empty: it is), `F.codec` string, how it is
stored (`codecs/stored`), `F.runs` and `F.images` binary (`FieldColumn`). In a listing fields are whole files unless there is
`datapipe.ranges.F`; `datapipe.values.F` names the file in the index's own directory that holds the field.

A field whose values are compressed together with those of other samples is addressed by rows: `F.offset` is the
row in the shard, `F.nbytes` the approximate size of its value, and the metadata has `datapipe.rows.F`, the field's name in
the shard, and `datapipe.index.row_groups`, a JSON list of the rows at which row groups begin, and of their number.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.codecs.stored import PLAIN
from datapipe.core import atomic
from datapipe.index.arrow_buffers import array_of, strings_of

SIDECAR_SUFFIX = ".index.arrow"
ROW_NBYTES = 32  # least size of a sample: four numbers, and the ends of two texts
PREFIX_KEY = "datapipe.prefix."  # keys of the metadata
ROWS_KEY = "datapipe.rows."
ROW_GROUPS_KEY = "datapipe.index.row_groups"
FURTHER_KEY = "datapipe.further."
RANGES_KEY = "datapipe.ranges."
VALUES_KEY = "datapipe.values."
FURTHER = {
    "path": pa.binary(),
    "codec": pa.string(),
    "runs": pa.binary(),
    "images": pa.binary(),
}  # columns of a field that most have not


@dataclass(frozen=True, slots=True)
class FieldExtent:
    """Where one field of one sample lies in its shard, and its checksum."""

    encoding: str  # "jpeg", "png", "npy", ... or "" if unknown
    offset: int  # bytes
    nbytes: int
    crc32c: int | None  # None: not computed
    path: bytes = b""  # of the file that holds it, relative to the dataset, where that is not the shard, nor the sample's source
    codec: str = PLAIN  # how it is stored; see `codecs/stored`


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """Where one field of all samples of a shard lies, in the order of its rows."""

    offset: NDArray[np.int64]  # (n,) bytes from the start of the shard; rows, if `column` is given
    nbytes: NDArray[np.int64]  # (n,); for rows the approximate size of a value, 0 if unknown
    prefix: bytes = b""  # bytes that belong before those of every sample
    column: str | None = None  # the name in the shard of a field that is addressed by rows
    encoding: str = ""  # as of `FieldExtent`
    crc32c: NDArray[np.uint32] | None = None  # (n,)
    codecs: Sequence[str] = ()  # n of them, how each is stored; see `codecs/stored`; none: as it is
    runs: Sequence[bytes] = ()  # n of them, of tokens that carry loss: (k, 2) int32, the first of each and the one after the last
    images: Sequence[bytes] = ()  # n of them, (k, 5) int32 of images: place in its tokens, bytes, width, height, orientation


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
    columns: dict[str, FieldColumn] = field(default_factory=dict)  # by field, those that were added as a whole
    row_groups: tuple[int, ...] = ()  # rows at which row groups begin, and their number; if a field is addressed by them
    classes: tuple[str, ...] | None = None  # names by label, if the shard has them; not kept in the sidecar
    said: Mapping[int, str] | None = None  # what each label says, if all shards decide whether these are names; not kept either
    lacking: dict[str, int] = field(default_factory=dict)  # by omitted field, how many samples lack it; not kept either
    unread: dict[str, str] = field(default_factory=dict)  # by name in the shard, why it is no field; not kept either
    ranges: set[str] = field(default_factory=set)  # of a listing, fields that are ranges of files rather than whole ones
    values_file: dict[str, str] = field(default_factory=dict)  # by field, the file in the index's directory that holds it

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

    def to_table(self, shard_name: str) -> pa.Table:
        """Return the rows as an Arrow table with the metadata of a sidecar."""
        sizes = np.array(self.sizes, np.int32).reshape(-1, 2)
        columns: dict[str, pa.Array] = {
            "id": array_of(np.array(self.ids, np.int64)),
            "key": strings_of(self.keys, pa.binary()),
            "source": strings_of(self.sources, pa.binary()),
            "label": array_of(np.array(self.labels, np.int64)),
            "height": array_of(sizes[:, 0]),
            "width": array_of(sizes[:, 1]),
        }
        for name in self.field_names:
            columns |= self._of_column(name) if name in self.columns else self._of_extents(name)
        metadata: dict[str, str | bytes] = {
            "datapipe.index.sidecar": "1",
            "datapipe.shard": shard_name,
            "datapipe.fields": ",".join(self.field_names),
        }
        of_columns = self.columns.items()
        metadata |= {PREFIX_KEY + name: one.prefix.hex() for name, one in of_columns if one.prefix}
        metadata |= {
            ROWS_KEY + name: one.column.encode(errors="surrogateescape") for name, one in of_columns if one.column is not None
        }
        if self.row_groups:
            metadata[ROW_GROUPS_KEY] = json.dumps(self.row_groups)
        metadata |= {FURTHER_KEY + name: ",".join(parts) for name in self.field_names if (parts := self._further(name))}
        metadata |= {RANGES_KEY + name: "1" for name in sorted(self.ranges)}
        metadata |= {VALUES_KEY + name: file for name, file in self.values_file.items()}
        return pa.table(columns).replace_schema_metadata(metadata)

    def _further(self, name: str) -> list[str]:
        """Return which further columns a field needs."""
        if name in self.columns:
            column = self.columns[name]
            parts = (("codec", column.codecs), ("runs", column.runs), ("images", column.images))
            return [part for part, values in parts if any(values)]
        extents = self.extents[name]
        return [part for part in ("path", "codec") if any(map(operator.attrgetter(part), extents))]

    def _of_extents(self, name: str) -> dict[str, pa.Array]:
        extents = self.extents[name]
        further = self._further(name)
        columns = {
            "path": lambda: [one.path for one in extents],
            "codec": lambda: [one.codec.encode() for one in extents],
        }
        return {
            f"{name}.encoding": strings_of([extent.encoding.encode() for extent in extents], pa.string()),
            f"{name}.offset": array_of(np.array([extent.offset for extent in extents], np.int64)),
            f"{name}.nbytes": array_of(np.array([extent.nbytes for extent in extents], np.int64)),
            f"{name}.crc32c": array_of(np.array([extent.crc32c or 0 for extent in extents], np.uint32)),
            f"{name}.has_crc": array_of(np.array([extent.crc32c is not None for extent in extents], np.uint8)),
            **{f"{name}.{part}": strings_of(columns[part](), FURTHER[part]) for part in further},
        }

    def _of_column(self, name: str) -> dict[str, pa.Array]:
        found, num = self.columns[name], len(self)
        codecs = [codec.encode() for codec in found.codecs]
        further: dict[str, Sequence[bytes]] = {"codec": codecs, "runs": found.runs, "images": found.images}
        return {
            f"{name}.encoding": strings_of([found.encoding.encode()] * num, pa.string()),
            f"{name}.offset": array_of(found.offset),
            f"{name}.nbytes": array_of(found.nbytes),
            f"{name}.crc32c": array_of(np.zeros(num, np.uint32) if found.crc32c is None else found.crc32c),
            f"{name}.has_crc": array_of(np.full(num, found.crc32c is not None, np.uint8)),
            **{f"{name}.{part}": strings_of(further[part], FURTHER[part]) for part in self._further(name)},
        }


def write_sidecar(path: Path, rows: SidecarRows, shard_name: str) -> str:
    """Write the index of `shard_name` atomically. Returns the sha256 of its bytes, in hex. Equal rows give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)  # of a shard in a folder
    return _write_table(path, rows.to_table(shard_name).combine_chunks())


def relabel_sidecar(path: Path, changes: Mapping[int, int]) -> str:
    """Write a sidecar again with other labels. `changes`: the new label by the old one, where they differ. Returns its sha256."""
    with pa.ipc.open_file(pa.py_buffer(path.read_bytes())) as reader:
        table = reader.read_all()
    labels = [changes.get(label, label) for label in table.column("label").to_pylist()]
    place = table.schema.get_field_index("label")
    return _write_table(path, table.set_column(place, table.schema.field(place), array_of(np.array(labels, np.int64))))


def _write_table(path: Path, table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    with atomic.atomic_writer(path) as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()
