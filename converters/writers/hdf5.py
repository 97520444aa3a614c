"""HDF5 shards: each field's bytes in one contiguous dataset, so that h5py and `pread` both read them.

Images are written to their final place as they arrive. The bytes of further fields wait in a temporary file, since they follow
the images. HDF5's metadata is made by h5py in memory at the end, with space left for the data: h5py writes to a file object that
records what is written to it and where. The large datasets are allocated in it and never written, so it records only a few
kilobytes and about 40 bytes per sample, which are then written around the data. Memory does not grow with the shard's bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import h5py
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from converters.writers import ShardStream, StoredSample, WrittenShard, add_sample, write_all
from datapipe.codecs.field_values import LABEL_FIELD, FieldSpec
from datapipe.containers import hdf5 as form
from datapipe.errors import FormatError
from datapipe.index.sidecar import FieldExtent, SidecarRows

_READ_NBYTES = 4 << 20
_LABEL_ENCODING = "int64"  # little-endian


class Writer:
    """An HDF5 file being written; see `converters.writers.ShardWriter`."""

    def __init__(self, path: Path, *, fields: tuple[FieldSpec, ...], classes: Sequence[str] | None) -> None:
        self._path = path
        self._names = tuple(field.name for field in fields)
        self._columns = {name: _Column() for name in self._names if name != LABEL_FIELD.name}
        self._rows = SidecarRows(())  # without extents until the end
        self._stream = ShardStream(path, start=form.DATA_START, hashes=False)
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
        add_sample(self._rows, sample, {})

    def finish(self) -> WrittenShard:
        layout = lay_out(
            {name: np.cumsum([0, *column.sizes], dtype=np.int64) for name, column in self._columns.items()},
            labels=np.array(self._rows.labels, np.int64) if LABEL_FIELD.name in self._names else None,
            keys=self._rows.keys,
            sizes=np.array(self._rows.sizes, np.int32).reshape(-1, 2),
            pixels=self._pixels(self._rows.sizes),
        )
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
        self._rows.field_names, self._rows.extents = self._names, self._extents(layout)
        return WrittenShard(layout.nbytes, sha256, self._rows, {})

    def abandon(self) -> None:
        for spool in self._spools.values():
            spool.close()
        self._stream.abandon()

    def _pixels(self, sizes: list[tuple[int, int]]) -> Pixels | None:
        """Return how the field `image` lies, if all images are raw pixels of one size."""
        image = self._columns.get("image")
        if image is None or set(image.encodings) != {"npy"} or len(set(sizes)) != 1 or len(set(image.sizes)) != 1:
            return None
        height, width = sizes[0]
        return Pixels((height, width, 3), image.sizes[0] - height * width * 3)

    def _extents(self, layout: Hdf5Layout) -> dict[str, list[FieldExtent]]:
        """Return, by field, where each sample's value is."""
        extents: dict[str, list[FieldExtent]] = {name: [] for name in self._names}
        for name, column in self._columns.items():
            offsets = itertools.accumulate(column.sizes, initial=layout.data_offsets[name])
            parts = zip(column.encodings, offsets, column.sizes, column.checksums, strict=False)  # one more offset, the end
            extents[name] = list(itertools.starmap(FieldExtent, parts))
        if layout.label_offset is not None:
            extents[LABEL_FIELD.name] = [
                FieldExtent(_LABEL_ENCODING, layout.label_offset + 8 * row, 8, crc32c(np.array(label, "<i8").tobytes()))
                for row, label in enumerate(self._rows.labels)
            ]
        return extents


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
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Pixels:
    """Raw images of one size, each after a header."""

    shape: tuple[int, int, int]  # of one, (height, width, 3)
    header_nbytes: int  # before the pixels of each


@dataclass(frozen=True, slots=True)
class Hdf5Layout:
    """An HDF5 file without the data of its fields."""

    nbytes: int  # of the whole file
    pieces: list[tuple[int, bytes]]  # (offset, bytes) to be written, in this order
    data_offsets: dict[str, int]  # by field, the offset of its data
    label_offset: int | None  # of the first label; None without labels


def lay_out(
    offsets: Mapping[str, NDArray[np.int64]],
    *,
    labels: NDArray[np.int64] | None,
    keys: Sequence[bytes],
    sizes: NDArray[np.int32],
    pixels: Pixels | None,
) -> Hdf5Layout:
    """Return the file that holds n samples; the data of the first field start at `form.DATA_START`.

    `offsets`: by field except the label, (n + 1,) where each sample's bytes begin in its data. `labels`: (n,). `sizes`: (n, 2)
    height, width. `pixels`: of the field `image`, if its images are raw ones of one size.
    """
    memory = _Remembered()
    options = {"alignment_threshold": form.LEAST_DATA, "alignment_interval": form.DATA_START}
    with h5py.File(memory, "w", libver=form.VERSIONS, **options) as file:
        data_offsets = {name: _allocate(file, name, int(places[-1])) for name, places in offsets.items()}
        for name, places in offsets.items():
            file[name].create_dataset(form.OFFSETS, data=places)
        if pixels is not None:
            _link_pixels(file["image"], len(keys), pixels)
        label_offset = None if labels is None else file.create_dataset(form.LABEL, data=labels).id.get_offset()
        width = max(map(len, keys), default=1)
        file.create_dataset(form.KEY, data=np.array(keys, f"S{width}"))
        file.create_dataset(form.SIZE, data=sizes)
    return Hdf5Layout(memory.nbytes, memory.pieces, data_offsets, label_offset)


def _allocate(file: h5py.File, name: str, nbytes: int) -> int:
    """Create the dataset of a field's bytes without writing it; return its offset in the file."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    space = h5py.h5s.create_simple((max(nbytes, form.LEAST_DATA),))
    dataset = h5py.h5d.create(file.create_group(name).id, form.DATA.encode(), h5py.h5t.STD_U8LE, space, creation)
    return int(dataset.get_offset())


def _link_pixels(group: h5py.Group, num: int, pixels: Pixels) -> None:
    """Add a view of the data as one array of all images, without their headers."""
    nbytes = int(np.prod(pixels.shape))
    source = h5py.h5s.create_simple(group[form.DATA].shape)
    source.select_hyperslab((pixels.header_nbytes,), (num,), (pixels.header_nbytes + nbytes,), (nbytes,))
    view = h5py.h5s.create_simple((num, *pixels.shape))
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_obj_track_times(False)
    creation.set_virtual(view, b".", f"{group.name}/{form.DATA}".encode(), source)  # "." is the file itself, under any name
    h5py.h5d.create(group.id, form.PIXELS.encode(), h5py.h5t.STD_U8LE, view, creation)


class _Remembered:
    """A file in memory that stores only what was written, and where."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.nbytes = 0
        self._position = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.nbytes)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: bytes | memoryview) -> int:
        self.pieces.append((self._position, bytes(data)))
        self._position += len(data)
        self.nbytes = max(self.nbytes, self._position)
        return len(data)

    def read(self, nbytes: int) -> bytes:
        """Return what was written, and zeros elsewhere."""
        start, end = self._position, self._position + nbytes
        found = bytearray(nbytes)
        for offset, data in self.pieces:
            first, last = max(start, offset), min(end, offset + len(data))
            if first < last:
                found[first - start : last - start] = data[first - offset : last - offset]
        self._position = end
        return bytes(found)

    def readinto(self, buffer: memoryview) -> int:
        buffer[:] = self.read(len(buffer))
        return len(buffer)

    def truncate(self, nbytes: int | None = None) -> int:
        self.nbytes = self._position if nbytes is None else nbytes
        return self.nbytes

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""
