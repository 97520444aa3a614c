"""Find fields in an HDF5 file: addressed by bytes if each value lies in one piece, by rows otherwise.

uint8, variable length          an image, a mask or bytes      numbers (n, ...)              array, or a mask
`data` and `offsets`, a group   the same; a text by its name   numbers, variable length      array
strings                         text, or json

An array in one piece, or in unfiltered chunks of one sample each, holds every sample as the bytes that a `.npy` file has
after its header. All samples have one shape, so the header is the same for all.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import h5py
import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldKind
from datapipe.codecs.npy import npy_header
from datapipe.containers import hdf5 as form
from datapipe.containers.field_names import HEAD_NBYTES, kind_of_array, kind_of_bytes, kind_of_text
from datapipe.containers.hdf5.rows import DatasetRows
from datapipe.containers.hdf5.vlen import vlen_extents
from datapipe.containers.mapped import is_bomb
from datapipe.errors import FormatError
from datapipe.index.sidecar import FieldColumn

_RUN_NBYTES = 8 << 20  # of the values of a row group, if chunks are smaller
_MAX_RUN = 1024  # rows of such a row group
_MAX_STRING = 1 << 20  # bytes of a string of fixed length
_MAX_CHANNELS = 4  # a last dimension of at most this size is one of channels
_MAX_ROW = 1 << 30  # bytes of a sample
_Extents = tuple[NDArray[np.int64], NDArray[np.int64]]


class UnreadableError(Exception):
    """A dataset cannot be a field; the text says why, the caller knows which."""


@dataclass(frozen=True, slots=True)
class ReadableDataset:
    """A dataset, or a group of two, with readable values."""

    name: str
    column: FieldColumn
    kind: FieldKind
    head: bytes  # the first value, or its beginning
    chunk: int = 1  # rows that are stored together, if it is addressed by rows

    def __len__(self) -> int:
        return len(self.column.offset)


def find_field(name: str, entry: h5py.Group | h5py.Dataset, data: mmap.mmap) -> ReadableDataset | None:
    """Return a field; None for an object that holds nothing of samples. `data`: the whole file.

    Raises UnreadableError, with the reason, if it cannot be a field, FormatError if the file is damaged, and H5PY_ERRORS.
    """
    if isinstance(entry, h5py.Group):
        is_ours = isinstance(entry.get(form.DATA), h5py.Dataset) and isinstance(entry.get(form.OFFSETS), h5py.Dataset)
        return _find_blobs(name, entry, data) if is_ours else None
    if not isinstance(entry, h5py.Dataset) or entry.ndim < 1 or entry.parent.get(form.OFFSETS) is not None:
        return None
    if entry.external or entry.is_virtual:
        raise UnreadableError("lies outside the file")
    try:
        return _find_values(name, entry, data)
    except FormatError:
        raise
    except ValueError as exc:
        raise UnreadableError(f"has {exc}") from exc


def row_starts(fields: list[ReadableDataset], num: int) -> tuple[int, ...]:
    """Return the rows at which row groups begin, and their number; empty if every field is addressed by bytes.

    All fields are read by the same row groups, which are whole chunks of the field with the largest chunks.
    """
    by_rows = [field for field in fields if field.column.column is not None]
    if not by_rows:
        return ()
    chunk = max(field.chunk for field in by_rows)
    nbytes = sum(int(field.column.nbytes.mean()) for field in by_rows)
    run = chunk * max(1, min(_MAX_RUN // chunk, _RUN_NBYTES // max(1, chunk * nbytes)))
    return (*range(0, num, run), num)


def _find_blobs(name: str, group: h5py.Group, data: mmap.mmap) -> ReadableDataset:
    blob, offsets = group[form.DATA], group[form.OFFSETS]
    if blob.ndim != 1 or blob.dtype != np.uint8 or offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise UnreadableError("has 'data' and 'offsets', but not as uint8 (nbytes,) and integers (n + 1,)")
    start = blob.id.get_offset()
    if blob.chunks or blob.external or start is None:
        raise UnreadableError("has 'data' in chunks or outside the file, where no image lies in one piece")
    if start + len(blob) > len(data) or not 0 < len(offsets) <= len(data):
        raise FormatError("it reaches beyond the end: the file was cut")
    places = offsets[()].astype(np.int64)
    if places[0] != 0 or places[-1] > len(blob) or bool((np.diff(places) < 0).any()):
        raise UnreadableError("has 'offsets' that do not ascend from 0 to the length of 'data'")
    return _by_bytes(name, (start + places[:-1], np.diff(places)), data)


def _find_values(name: str, entry: h5py.Dataset, data: mmap.mmap) -> ReadableDataset:
    """Find the field of a dataset. Raises ValueError as well, naming the property that prevents it."""
    if len(entry) > len(data):
        raise FormatError("it claims more samples than the file has bytes: damaged")
    elements, text = h5py.check_vlen_dtype(entry.dtype), h5py.check_string_dtype(entry.dtype)
    if text is not None and text.length is not None and entry.ndim == 1:
        return _find_fixed_strings(name, entry, data)
    if entry.ndim == 1 and (text is not None or elements == np.uint8):
        return _by_bytes(name, vlen_extents(entry, data), data, is_text=text is not None)
    if entry.ndim == 1 and elements is not None and elements.kind in "biuf":
        _, nbytes = vlen_extents(entry, data, itemsize=elements.itemsize)
        column = FieldColumn(np.arange(len(entry), dtype=np.int64), nbytes, column=name)
        return ReadableDataset(name, column, FieldKind.ARRAY, b"", (entry.chunks or (1,))[0])
    if entry.dtype.kind not in "biuf":
        raise ValueError(f"values of type {entry.dtype}, which cannot become a field")
    prefix = npy_header(entry.shape[1:], entry.dtype)
    extents = array_extents(entry, len(data))
    if extents is None:
        return _by_rows(name, entry, data, kind_of_array(name, prefix))
    return ReadableDataset(name, FieldColumn(*extents, prefix=prefix), kind_of_array(name, prefix), prefix)


def _by_bytes(name: str, extents: _Extents, data: mmap.mmap, *, is_text: bool = False) -> ReadableDataset:
    offset, nbytes = extents
    head = data[offset[0] : offset[0] + min(nbytes[0], HEAD_NBYTES)] if len(offset) else b""
    return ReadableDataset(name, FieldColumn(offset, nbytes), kind_of_text(name) if is_text else kind_of_bytes(name, head), head)


def _by_rows(name: str, entry: h5py.Dataset, data: mmap.mmap, kind: FieldKind) -> ReadableDataset:
    """Return the field of a dataset in chunks. Reads the first value, as a filter may not be installed."""
    check_chunks(entry, len(data))
    try:
        first = DatasetRows(entry[:1])
    except (OSError, RuntimeError) as exc:
        raise ValueError(f"values that h5py cannot read ({exc})") from exc
    rows, nbytes = np.arange(len(entry), dtype=np.int64), np.full(len(entry), first.nbytes, np.int64)
    return ReadableDataset(name, FieldColumn(rows, nbytes, column=name), kind, first[0][:HEAD_NBYTES], entry.chunks[0])


def _find_fixed_strings(name: str, entry: h5py.Dataset, data: mmap.mmap) -> ReadableDataset:
    """Return the field of strings of fixed length, without the zeros that pad them."""
    if entry.dtype.itemsize > _MAX_STRING:
        raise ValueError(f"strings of {entry.dtype.itemsize} bytes each")
    extents = array_extents(entry, len(data))
    if extents is None:
        return _by_rows(name, entry, data, kind_of_text(name))
    nbytes = np.array([len(value) for value in entry[()].tolist()], np.int64)
    return _by_bytes(name, (extents[0], nbytes), data, is_text=True)


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
    if is_bomb(chunk_nbytes, min(sizes)):
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
