"""Read rows of HDF5 datasets whose values share chunks with others, are filtered, or are lists of numbers.

h5py has one lock for all reads of a process, so threads take turns.
"""

from __future__ import annotations

import mmap
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.npy import npy_bytes
from datapipe.containers.hdf5.vlen import vlen_extents
from datapipe.core.regular_files import open_file, opened_by_name
from datapipe.errors import DecodeError, FormatError
from datapipe.index.entries import RowGroup, Rows

# the exceptions that h5py raises for damaged files, from its own checks and from the library's
H5PY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, AttributeError)
DAMAGE = (FormatError, *H5PY_ERRORS)


class DatasetRows:
    """Rows of a dataset; see `index.entries.Rows`. `values`: numbers or strings, as h5py gives them, or made bytes of each."""

    __slots__ = ("_values", "nbytes")

    def __init__(self, values: NDArray[Any] | list[bytes]) -> None:
        self._values = values
        self.nbytes = int(values.nbytes) if isinstance(values, np.ndarray) else sum(map(len, values))

    def __getitem__(self, row: int) -> bytes:
        if not 0 <= row < len(self._values):
            raise DecodeError(f"no row {row} of {len(self._values)}")
        value = self._values[row]
        return bytes(value) if isinstance(value, bytes) else npy_bytes(np.asarray(value))


def read_rows(group: RowGroup) -> Rows:
    """Read one field of a row group. Raises DAMAGE."""
    with opened_by_name(group.path) as name, h5py.File(name, "r", locking=False) as file:
        dataset = file[group.column]
        if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual or len(dataset) < group.end:
            raise ValueError("its datasets have changed")
        elements = h5py.check_vlen_dtype(dataset.dtype)
        if elements is not None:
            return _read_lists(dataset, elements, group)
        if dataset.dtype.hasobject:
            raise ValueError("its datasets have changed")
        return DatasetRows(dataset[group.first : group.end])


def _read_lists(dataset: h5py.Dataset, elements: np.dtype[Any], group: RowGroup) -> DatasetRows:
    with open_file(group.path) as plain, mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as data:
        extents = vlen_extents(dataset, data, itemsize=elements.itemsize, rows=range(group.first, group.end))
        places = zip(*(numbers.tolist() for numbers in extents), strict=True)
        return DatasetRows([npy_bytes(np.frombuffer(data[offset : offset + nbytes], elements)) for offset, nbytes in places])
