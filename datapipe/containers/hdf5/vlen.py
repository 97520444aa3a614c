"""Locate the elements of a variable-length dataset in an HDF5 file.

The dataset itself holds references: a length and a place in a *global heap collection*, where the bytes are. h5py gives
the place of the references, not that of the bytes, and the library follows damaged ones endlessly; so the collections are
read here, according to the HDF5 File Format Specification 3.0, sections III.E (global heap) and IV.A.2.d (the datatype
"variable-length"). All sizes are 8 bytes, as in every file that HDF5 writes by default. A filter of the dataset
applies to its references: the bytes to which they refer are not compressed.
"""

from __future__ import annotations

import mmap
import struct

import h5py
import numpy as np
from numpy.typing import NDArray

from datapipe.containers.mapped import is_bomb
from datapipe.errors import FormatError

_REFERENCE = np.dtype([("length", "<u4"), ("collection", "<u8"), ("index", "<u4")])  # 16 bytes, packed
_HEAD_NBYTES = 16
_MAX_COLLECTIONS = 64  # kept parsed; neighbours in a dataset mostly share one


def vlen_extents(
    dataset: h5py.Dataset, data: mmap.mmap, *, itemsize: int = 1, rows: range | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (n,) offset in the file and (n,) size, in bytes, of each element of a 1-D dataset of variable length.

    `data`: the whole file; `itemsize`: bytes of a value within an element; `rows`: the rows to locate, None for all.
    Raises ValueError, with the reason, if they cannot be located, FormatError if the file is damaged; neither names the file.
    """
    if dataset.file.id.get_create_plist().get_sizes() != (8, 8):
        raise ValueError("the file's offsets are not 8 bytes long")
    wanted = range(len(dataset)) if rows is None else rows
    references = _references(dataset, data, wanted)
    heap = _Heap(data, dataset.file.userblock_size)
    offset, nbytes = np.zeros(len(references), np.int64), references["length"].astype(np.int64) * itemsize
    for row, (length, collection, index) in enumerate(references.tolist()):
        if length:
            offset[row], size = heap.find(collection, index)
            if length * itemsize > size:
                raise FormatError(
                    f"element {wanted[row]} of {length * itemsize} bytes is longer than its {size} bytes in the heap: damaged"
                )
    return offset, nbytes


def _references(dataset: h5py.Dataset, data: mmap.mmap, rows: range) -> NDArray[np.void]:
    """Return (n,) of _REFERENCE."""
    if dataset.external or dataset.is_virtual:
        raise ValueError("it lies outside the file")
    if len(rows) * _REFERENCE.itemsize > len(data) and dataset.chunks is None:
        raise FormatError("it claims more elements than the file has room for: damaged")
    if dataset.chunks is None:
        start = dataset.id.get_offset()
        if start is None:
            raise ValueError("nothing was written to it")
        size = _REFERENCE.itemsize
        return _as_references(data[start + rows.start * size : start + rows.stop * size], len(rows))
    references = np.zeros(len(rows), _REFERENCE)
    chunks: list[h5py.h5d.StoreInfo] = []
    dataset.id.chunk_iter(chunks.append)  # asking for one after the other takes quadratic time
    with _Unfiltered(dataset) as unfiltered:
        for chunk in chunks:
            start = int(chunk.chunk_offset[0])
            first, end = max(start, rows.start), min(start + dataset.chunks[0], rows.stop)
            if first < end:
                raw = data[chunk.byte_offset : chunk.byte_offset + chunk.size]
                if len(raw) < chunk.size:
                    raise FormatError("its references reach beyond the end: the file was cut")
                found = _as_references(unfiltered(raw, chunk.filter_mask), end - start)
                references[first - rows.start : end - rows.start] = found[first - start :]
    return references


def _as_references(raw: bytes, num: int) -> NDArray[np.void]:
    if len(raw) < num * _REFERENCE.itemsize:
        raise FormatError("its references reach beyond the end: the file was cut")
    return np.frombuffer(raw, _REFERENCE, num)


class _Unfiltered:
    """Chunks of references with the dataset's filters undone.

    The library would follow the references if it read them. So each chunk is put unchanged into a dataset in memory
    that has the same filters, and opaque elements of 16 bytes.
    """

    def __init__(self, dataset: h5py.Dataset) -> None:
        creation = dataset.id.get_create_plist()
        self._filters = [creation.get_filter(number) for number in range(creation.get_nfilters())]
        self._num: int = dataset.chunks[0]
        self._memory: h5py.File | None = None
        self._datasets: dict[int, h5py.h5d.DatasetID] = {}  # by the filters that were not applied

    def __enter__(self) -> _Unfiltered:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._memory is not None:
            self._memory.close()

    def __call__(self, raw: bytes, skipped: int) -> bytes:
        """Return a chunk unfiltered. `skipped`: bits of the filters not applied. Raises ValueError if a filter is missing."""
        skipped &= (1 << len(self._filters)) - 1
        if skipped.bit_count() == len(self._filters):
            return raw
        nbytes = self._num * _REFERENCE.itemsize
        if is_bomb(nbytes, len(raw)):
            raise FormatError(f"{nbytes} bytes of references claim to be stored in {len(raw)}: damaged")
        try:
            dataset = self._datasets[skipped] = self._datasets.get(skipped) or self._open(skipped)
        except (OSError, RuntimeError, TypeError, ValueError) as exc:
            raise ValueError(f"its references go through filter {self._filters[-1][0]}, which is not installed ({exc})") from exc
        try:
            dataset.write_direct_chunk((0,), raw)
            found = np.empty(self._num, f"V{_REFERENCE.itemsize}")
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, found)
        except (OSError, RuntimeError) as exc:
            raise FormatError(f"its references cannot be read ({exc}): damaged") from exc
        return found.tobytes()

    def _open(self, skipped: int) -> h5py.h5d.DatasetID:
        if self._memory is None:
            self._memory = h5py.File(f"references-{id(self)}", "w", driver="core", backing_store=False)
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk((self._num,))
        for place, (number, flags, values, _) in enumerate(self._filters):
            if not skipped >> place & 1:
                creation.set_filter(number, flags, values)
        opaque, space = h5py.h5t.create(h5py.h5t.OPAQUE, _REFERENCE.itemsize), h5py.h5s.create_simple((self._num,))
        return h5py.h5d.create(self._memory.id, b"%d" % skipped, opaque, space, creation)


class _Heap:
    """The global heap of a file; collections are parsed when first needed."""

    def __init__(self, data: mmap.mmap, userblock: int) -> None:
        self._data = data
        self._userblock = userblock
        self._collections: dict[int, dict[int, tuple[int, int]]] = {}

    def find(self, collection: int, index: int) -> tuple[int, int]:
        """Return the offset in the file and the size of an object."""
        objects = self._collections.get(collection)
        if objects is None:
            if len(self._collections) >= _MAX_COLLECTIONS:
                self._collections.pop(next(iter(self._collections)))
            objects = self._collections[collection] = self._parse(self._userblock + collection)
        if index not in objects:
            raise FormatError(f"object {index} is not in the heap collection at byte {collection}: damaged")
        return objects[index]

    def _parse(self, start: int) -> dict[int, tuple[int, int]]:
        head = self._data[start : start + _HEAD_NBYTES] if start < len(self._data) else b""
        if len(head) < _HEAD_NBYTES or head[:5] != b"GCOL\x01":
            raise FormatError(f"no heap collection at byte {start}: damaged")
        end = start + struct.unpack_from("<Q", head, 8)[0]
        if end > len(self._data):
            raise FormatError(f"the heap collection at byte {start} reaches beyond the end: the file was cut")
        objects: dict[int, tuple[int, int]] = {}
        position = start + _HEAD_NBYTES
        while position + _HEAD_NBYTES <= end:
            index, size = struct.unpack_from("<H6xQ", self._data, position)
            if index == 0:  # the rest of the collection is free
                break
            position += _HEAD_NBYTES
            if size > end - position:
                raise FormatError(f"an object of the heap collection at byte {start} reaches beyond it: damaged")
            objects[index] = (position, size)
            position += -(-size // 8) * 8
        return objects
