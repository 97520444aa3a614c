"""Locate the values of an array in an HDF5 file: in one piece for each sample, or in chunks that h5py must read.

An array in one piece, or in unfiltered chunks of one sample each, holds every sample as the bytes that a `.npy` file has
after its header. All samples have one shape, so the header is the same for all.
"""

from __future__ import annotations

import math

import h5py
import numpy as np
from numpy.typing import NDArray

from datapipe.core.errors import FormatError

_MAX_CHANNELS = 4  # a last dimension of at most this size is one of channels
_MAX_CHUNK = 1 << 26  # bytes accepted in any chunk; larger ones must not be stored smaller than filters can make them
_MAX_RATIO = 1100  # deflate's
_MAX_ROW = 1 << 30  # bytes of a sample


def are_pixels(shape: tuple[int, ...]) -> bool:
    """Return True for the shape of an array of images: (n, h, w, 3), (n, h, w, 1), or (n, h, w) of grey ones."""
    return shape[3] in (1, 3) if len(shape) == 4 else len(shape) == 3 and shape[2] > _MAX_CHANNELS


def array_extents(dataset: h5py.Dataset, data_nbytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return (n,) offset in the file and (n,) size, in bytes, of the values of each sample; None if not all lie in one piece.

    `data_nbytes`: the size of the file. Raises ValueError, with the reason, for values that were never written, and FormatError
    if the file is damaged; neither names the file.
    """
    num, shape = len(dataset), dataset.shape[1:]
    nbytes = math.prod(shape) * dataset.dtype.itemsize
    if not num or not nbytes:
        raise ValueError(f"values of shape {dataset.shape}, which has none")
    if dataset.chunks is not None and (dataset.chunks != (1, *shape) or _has_filters(dataset)):
        return None
    if nbytes * num > data_nbytes:
        raise FormatError("it claims more values than the file has room for: the file was cut, or not all was written")
    in_one = dataset.chunks is None
    offset = _contiguous_start(dataset) + nbytes * np.arange(num, dtype=np.int64) if in_one else _chunk_offsets(dataset, nbytes)
    if offset.max() > data_nbytes - nbytes:
        raise FormatError("its values reach beyond the end: the file was cut")
    return offset, np.full(num, nbytes, np.int64)


def check_chunks(dataset: h5py.Dataset, data_nbytes: int) -> None:
    """Check that h5py may read a dataset in chunks. Raises ValueError, with the reason, or FormatError, as above."""
    creation = dataset.id.get_create_plist()
    for number, _, _, name in (creation.get_filter(place) for place in range(creation.get_nfilters())):
        if not h5py.h5z.filter_avail(number):
            raise ValueError(f"values behind filter {number} ({name.decode(errors='replace')}), which is not installed")
    chunk_nbytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if math.prod(dataset.shape[1:]) * dataset.dtype.itemsize > _MAX_ROW:
        raise ValueError(f"values of shape {dataset.shape}, of more than {_MAX_ROW} bytes each")
    num_chunks = math.prod(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    sizes: list[int] = []

    def note(chunk: h5py.h5d.StoreInfo) -> bool | None:
        sizes.append(chunk.size)
        return True if chunk.byte_offset is None or chunk.byte_offset + chunk.size > data_nbytes else None

    if dataset.id.chunk_iter(note):
        raise FormatError("its chunks reach beyond the end: the file was cut")
    if len(sizes) != num_chunks:
        raise ValueError(f"values that were never written, in {num_chunks - len(sizes)} of {num_chunks} chunks")
    if chunk_nbytes > max(_MAX_CHUNK, _MAX_RATIO * min(sizes)):
        raise FormatError(f"a chunk of {chunk_nbytes} bytes claims to be stored in {min(sizes)}")


def _has_filters(dataset: h5py.Dataset) -> bool:
    return bool(dataset.id.get_create_plist().get_nfilters())


def _contiguous_start(dataset: h5py.Dataset) -> int:
    start: int | None = dataset.id.get_offset()
    if start is None:
        raise ValueError("values that were never written")
    return start


def _chunk_offsets(dataset: h5py.Dataset, nbytes: int) -> NDArray[np.int64]:
    """Return (n,) offsets of an array in chunks of one sample."""
    offset = np.full(len(dataset), -1, np.int64)

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        if chunk.size == nbytes and chunk.chunk_offset[0] < len(offset):
            offset[chunk.chunk_offset[0]] = chunk.byte_offset

    dataset.id.chunk_iter(note)  # asking for one chunk after the other takes quadratic time
    if offset.min() < 0:
        raise ValueError(f"values that were never written, of sample {int(np.argmin(offset))}")
    return offset
