"""HDF5 shards: each field's bytes in one contiguous dataset, so that h5py and `pread` both read them.

Images are written to their final place as they arrive; HDF5's metadata is written around them at the end. The bytes of
further fields wait in a temporary file, since they follow the images. Memory does not grow with the shard's bytes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from crc32c import crc32c

from converters.writers import LABEL_FIELD, StoredSample, WrittenShard, sample_key
from converters.writers.hdf5_layout import Hdf5Layout, Pixels, ShardFields, lay_out
from converters.writers.stream import ShardStream, write_all
from datapipe.codecs.field_values import FieldSpec
from datapipe.containers.hdf5 import layout as form
from datapipe.core.errors import FormatError
from datapipe.index.sidecar import FieldExtent, Sidecar, SidecarRows

_READ_NBYTES = 4 << 20
_LABEL_ENCODING = "int64"  # little-endian


def open_shard(path: Path, *, fields: tuple[FieldSpec, ...], classes: Sequence[str] | None) -> Hdf5Shard:
    """Create the shard at `path`, which must not exist."""
    return Hdf5Shard(path, fields)


def companions(shard: Path, sidecar: Sidecar) -> dict[str, bytes]:
    """Return no files: HDF5 is its own index."""
    return {}


class Hdf5Shard:
    """An HDF5 file being written; see `converters.writers.ShardWriter`."""

    def __init__(self, path: Path, fields: tuple[FieldSpec, ...]) -> None:
        self._path = path
        self._names = tuple(field.name for field in fields)
        self._columns = {name: _Column() for name in self._names if name != LABEL_FIELD.name}
        self._samples: list[tuple[int, bytes, int, tuple[int, int]]] = []  # id, source, label, size
        self._stream = ShardStream(path, start=form.DATA_START)
        others = list(self._columns)[1:]  # the first field's bytes are written in place
        self._spools = {name: tempfile.TemporaryFile(dir=path.parent) for name in others}  # noqa: SIM115  # closed at the end

    def check(self, sample: StoredSample) -> None:
        """Accept every sample: HDF5 holds any."""

    def append(self, sample: StoredSample) -> None:
        for name, column in self._columns.items():
            stored = sample.fields[name]
            column.encodings.append(stored.encoding)
            column.sizes.append(len(stored.data))
            column.checksums.append(crc32c(stored.data))
            if name in self._spools:
                self._spools[name].write(stored.data)
            else:
                self._stream.put(stored.data)
        self._samples.append((sample.id, sample.source, sample.label, sample.size))

    def finish(self) -> WrittenShard:
        layout = lay_out(self._as_columns())
        first = next(iter(layout.data_offsets.values()), form.DATA_START)
        if first != form.DATA_START:
            raise FormatError(
                f"{self._path}: this version of HDF5 puts data at byte {first}, not {form.DATA_START}; install h5py 3"
            )
        self._stream.flush()
        descriptor = self._stream.descriptor
        for offset, piece in layout.pieces:
            os.lseek(descriptor, offset, os.SEEK_SET)
            write_all(descriptor, piece)
        for name, spool in self._spools.items():
            os.lseek(descriptor, layout.data_offsets[name], os.SEEK_SET)
            _copy(spool, descriptor)
            spool.close()
        os.ftruncate(descriptor, layout.nbytes)
        sha256 = _sha256(descriptor)
        self._stream.finish()
        return WrittenShard(layout.nbytes, sha256, self._rows(layout), {})

    def abandon(self) -> None:
        for spool in self._spools.values():
            spool.close()
        self._stream.abandon()

    def _as_columns(self) -> ShardFields:
        labels = [label for _, _, label, _ in self._samples]
        sizes = [size for _, _, _, size in self._samples]
        return ShardFields(
            offsets={name: np.cumsum([0, *column.sizes], dtype=np.int64) for name, column in self._columns.items()},
            labels=np.array(labels, np.int64) if LABEL_FIELD.name in self._names else None,
            keys=[sample_key(number).encode() for number, _, _, _ in self._samples],
            sizes=np.array(sizes, np.int32).reshape(-1, 2),
            pixels=self._pixels(sizes),
        )

    def _pixels(self, sizes: list[tuple[int, int]]) -> dict[str, Pixels]:
        """Return the image field, if all images are raw pixels of one size."""
        image = self._columns.get("image")
        if image is None or set(image.encodings) != {"npy"} or len(set(sizes)) != 1 or len(set(image.sizes)) != 1:
            return {}
        height, width = sizes[0]
        return {"image": Pixels((height, width, 3), image.sizes[0] - height * width * 3)}

    def _rows(self, layout: Hdf5Layout) -> SidecarRows:
        rows = SidecarRows(self._names)
        ends = dict(layout.data_offsets)
        for row, (number, source, label, size) in enumerate(self._samples):
            extents = {}
            for name, column in self._columns.items():
                extents[name] = FieldExtent(column.encodings[row], ends[name], column.sizes[row], column.checksums[row])
                ends[name] += column.sizes[row]
            if layout.label_offset is not None:
                checksum = crc32c(np.array(label, "<i8").tobytes())
                extents[LABEL_FIELD.name] = FieldExtent(_LABEL_ENCODING, layout.label_offset + 8 * row, 8, checksum)
            rows.append(id=number, key=sample_key(number).encode(), source=source, label=label, size=size, extents=extents)
        return rows


@dataclass(slots=True)
class _Column:
    """The metadata of one field's bytes, sample by sample."""

    encodings: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # bytes
    checksums: list[int] = field(default_factory=list)  # CRC-32C


def _copy(source: IO[bytes], descriptor: int) -> None:
    source.seek(0)
    while data := source.read(_READ_NBYTES):
        write_all(descriptor, data)


def _sha256(descriptor: int) -> str:
    """Return the hash of the whole file: its first bytes are written last, so it cannot be hashed while it is written."""
    digest, buffer = hashlib.sha256(), bytearray(_READ_NBYTES)
    view = memoryview(buffer)
    os.lseek(descriptor, 0, os.SEEK_SET)
    while count := os.readv(descriptor, [buffer]):
        digest.update(view[:count])
    return digest.hexdigest()
