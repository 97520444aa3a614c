"""Where the images of an array of pixels lie in an HDF5 file, and the header that makes each of them a `.npy` file.

An array in one piece, or in unfiltered chunks of one image each, holds every image as the bytes that a `.npy` file has
behind its header. All images have one shape, so the header is the same for all.
"""

from __future__ import annotations

import io

import h5py
import numpy as np
from numpy.typing import NDArray

from datapipe.errors import FormatError

_MAX_CHANNELS = 4  # a last side of so few is one of channels


def pixel_extents(dataset: h5py.Dataset, data_nbytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n,) offset in the file and (n,) size, both in bytes, of each image of an array.

    The array is uint8 (n, h, w, 3), or (n, h, w, 1) or (n, h, w) of grey images.
    `data_nbytes`: the size of the file. Raises ValueError, saying why, where they cannot be had, FormatError where the
    file is damaged; neither names the file.
    """
    num, shape, chunks = len(dataset), dataset.shape[1:], dataset.chunks
    if (len(shape) == 3 and shape[2] not in (1, 3)) or (len(shape) == 2 and shape[1] <= _MAX_CHANNELS):
        raise ValueError(f"pixels of shape {dataset.shape}, which is none of (n, h, w, 3), (n, h, w, 1) and (n, h, w)")
    if dataset.external or dataset.is_virtual:
        raise ValueError("pixels outside the file")
    if dataset.id.get_create_plist().get_nfilters():
        raise ValueError(f"pixels in chunks with {dataset.compression or 'a filter'}, where no image lies as it is")
    if chunks is not None and chunks != (1, *shape):
        raise ValueError(f"pixels in chunks of {chunks}, where no image lies in one piece; those of {(1, *shape)} can be read")
    nbytes = int(np.prod(shape, dtype=np.int64))
    if not num or not nbytes:
        raise ValueError(f"pixels of shape {dataset.shape}, which has none")
    if nbytes * num > data_nbytes:
        raise FormatError("it claims more pixels than the file has room for: the file was cut, or not all was written")
    offset = _chunk_offsets(dataset, nbytes) if chunks else _contiguous_start(dataset) + nbytes * np.arange(num, dtype=np.int64)
    if offset.max() > data_nbytes - nbytes:
        raise FormatError("its pixels reach beyond the end: the file was cut")
    return offset, np.full(num, nbytes, np.int64)


def npy_header(shape: tuple[int, ...]) -> bytes:
    """What a version 1 `.npy` file of uint8 in C order begins with."""
    sink = io.BytesIO()
    np.lib.format.write_array_header_1_0(sink, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return sink.getvalue()


def _contiguous_start(dataset: h5py.Dataset) -> int:
    start: int | None = dataset.id.get_offset()
    if start is None:
        raise ValueError("pixels that nobody wrote")
    return start


def _chunk_offsets(dataset: h5py.Dataset, nbytes: int) -> NDArray[np.int64]:
    """(n,) of an array in chunks of one image."""
    offset = np.full(len(dataset), -1, np.int64)

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        if chunk.size == nbytes and chunk.chunk_offset[0] < len(offset):
            offset[chunk.chunk_offset[0]] = chunk.byte_offset

    dataset.id.chunk_iter(note)  # asking for one chunk after the other takes quadratic time
    if offset.min() < 0:
        raise ValueError(f"pixels of which nobody wrote image {int(np.argmin(offset))}")
    return offset
