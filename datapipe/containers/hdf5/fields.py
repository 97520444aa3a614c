"""Find fields in an HDF5 file: addressed by bytes if each value lies in one piece, by rows otherwise.

uint8, variable length          an image, a mask or bytes      numbers (n, ...)              array, or a mask
`data` and `offsets`, a group   the same; a text by its name   numbers, variable length      array
strings                         text, or json
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import h5py
import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldKind
from datapipe.codecs.npy import npy_header
from datapipe.containers.field_names import HEAD_NBYTES, kind_of_array, kind_of_bytes, kind_of_text
from datapipe.containers.hdf5 import layout as form
from datapipe.containers.hdf5.pixels import array_extents, check_chunks
from datapipe.containers.hdf5.rows import ArrayRows
from datapipe.containers.hdf5.vlen import vlen_extents
from datapipe.core.errors import FormatError
from datapipe.index.sidecar import FieldColumn

_RUN_NBYTES = 8 << 20  # of the values of a row group, if chunks are smaller
_MAX_RUN = 1024  # rows of such a row group
_MAX_STRING = 1 << 20  # bytes of a string of fixed length
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
        first = ArrayRows(entry[:1])
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
