"""Where the elements of a variable-length dataset lie in an HDF5 file.

The dataset itself holds references: a length and a place in a *global heap collection*, where the bytes are. h5py gives
the place of the references, not that of the bytes, so the collections are read here, after the HDF5 File Format
Specification 3.0, sections III.E (global heap) and IV.A.2.d (the datatype "variable-length"). All sizes are 8 bytes,
as in every file that HDF5 has written by default.
"""

from __future__ import annotations

import mmap
import struct

import h5py
import numpy as np
from numpy.typing import NDArray

from datapipe.errors import FormatError

_REFERENCE = np.dtype([("length", "<u4"), ("collection", "<u8"), ("index", "<u4")])  # 16 bytes, packed
_HEAD_NBYTES = 16
_MAX_COLLECTIONS = 64  # kept parsed; neighbours in a dataset mostly share one


def vlen_extents(dataset: h5py.Dataset, data: mmap.mmap, userblock: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n,) offset in the file and (n,) size, both in bytes, of each element of a 1-D dataset of variable-length uint8.

    `data`: the whole file; `userblock`: bytes before its HDF5 part. Raises ValueError, saying why, where they cannot be had,
    FormatError where the file is damaged; neither names the file.
    """
    if dataset.file.id.get_create_plist().get_sizes() != (8, 8):
        raise ValueError("the file's offsets are not 8 bytes long")
    references = _references(dataset, data)
    heap = _Heap(data, userblock)
    offset, nbytes = np.zeros(len(references), np.int64), references["length"].astype(np.int64)
    for row, (length, collection, index) in enumerate(references.tolist()):
        if length:
            offset[row], size = heap.find(collection, index)
            if length > size:
                raise FormatError(f"element {row} of {length} bytes is longer than its {size} bytes in the heap: damaged")
    return offset, nbytes


def _references(dataset: h5py.Dataset, data: mmap.mmap) -> NDArray[np.void]:
    """(n,) of _REFERENCE."""
    num = len(dataset)
    if dataset.external or dataset.is_virtual:
        raise ValueError("it lies outside the file")
    if dataset.id.get_create_plist().get_nfilters():
        raise ValueError("its references are compressed")
    if num * _REFERENCE.itemsize > len(data):
        raise FormatError("it claims more elements than the file has room for: damaged")
    references = np.zeros(num, _REFERENCE)
    if dataset.chunks is None:
        start = dataset.id.get_offset()
        if start is None:
            raise ValueError("nothing was written to it")
        references[:] = _read_references(data, start, num)
        return references
    chunks: list[h5py.h5d.StoreInfo] = []
    dataset.id.chunk_iter(chunks.append)  # asking for one after the other takes quadratic time
    for chunk in chunks:
        first = int(chunk.chunk_offset[0])
        count = max(0, min(dataset.chunks[0], num - first))
        references[first : first + count] = _read_references(data, chunk.byte_offset, count)
    return references


def _read_references(data: mmap.mmap, start: int, count: int) -> NDArray[np.void]:
    raw = data[start : start + count * _REFERENCE.itemsize]
    if len(raw) < count * _REFERENCE.itemsize:
        raise FormatError("its references reach beyond the end: the file was cut")
    return np.frombuffer(raw, _REFERENCE)


class _Heap:
    """The global heap of a file; collections are parsed when first asked for."""

    def __init__(self, data: mmap.mmap, userblock: int) -> None:
        self._data = data
        self._userblock = userblock
        self._collections: dict[int, dict[int, tuple[int, int]]] = {}

    def find(self, collection: int, index: int) -> tuple[int, int]:
        """Offset in the file and size of an object."""
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
            if index == 0:  # what is left of the collection is free
                break
            position += _HEAD_NBYTES
            if size > end - position:
                raise FormatError(f"an object of the heap collection at byte {start} reaches beyond it: damaged")
            objects[index] = (position, size)
            position += -(-size // 8) * 8
        return objects
