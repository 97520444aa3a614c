"""HDF5's metadata around a shard's data: made by h5py in memory, with space left for the data.

h5py writes to a file object that records what is written to it and where. The large datasets are allocated in it and never
written, so it records only the file's metadata and the small datasets: a few kilobytes and about 40 bytes per sample.
Written to the shard's file at their offsets, around the data already there, they make it an HDF5 file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import h5py
import numpy as np
from numpy.typing import NDArray

from datapipe.containers.hdf5 import layout as form


@dataclass(frozen=True, slots=True)
class Pixels:
    """Raw images of one size, each after a header."""

    shape: tuple[int, int, int]  # of one, (height, width, 3)
    header_nbytes: int  # before the pixels of each


@dataclass(frozen=True, slots=True)
class ShardFields:
    """The samples of a shard, field by field."""

    offsets: Mapping[str, NDArray[np.int64]]  # by field except the label: (n + 1,) where each sample's bytes begin in its data
    labels: NDArray[np.int64] | None  # (n,)
    keys: list[bytes]
    sizes: NDArray[np.int32]  # (n, 2) height, width
    pixels: Mapping[str, Pixels]  # of the fields that are raw images of one size


@dataclass(frozen=True, slots=True)
class Hdf5Layout:
    """An HDF5 file without the data of its fields."""

    nbytes: int  # of the whole file
    pieces: list[tuple[int, bytes]]  # (offset, bytes) to be written, in this order
    data_offsets: dict[str, int]  # by field, the offset of its data
    label_offset: int | None  # of the first label; None without labels


def lay_out(columns: ShardFields) -> Hdf5Layout:
    """Return the file that holds these columns; the data of the first field start at `hdf5_format.DATA_START`."""
    memory = _Remembered()
    options = {"alignment_threshold": form.LEAST_DATA, "alignment_interval": form.DATA_START}
    with h5py.File(memory, "w", libver=form.VERSIONS, **options) as file:
        data_offsets = {name: _allocate(file, name, int(offsets[-1])) for name, offsets in columns.offsets.items()}
        for name, offsets in columns.offsets.items():
            file[name].create_dataset(form.OFFSETS, data=offsets)
        for name, pixels in columns.pixels.items():
            _link_pixels(file[name], len(columns.keys), pixels)
        label_offset = None
        if columns.labels is not None:
            label_offset = file.create_dataset(form.LABEL, data=columns.labels).id.get_offset()
        width = max(map(len, columns.keys), default=1)
        file.create_dataset(form.KEY, data=np.array(columns.keys, f"S{width}"))
        file.create_dataset(form.SIZE, data=columns.sizes)
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
