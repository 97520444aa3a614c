"""Rows of numbers in contiguous two-dimensional HDF5 datasets, which are mapped: any row is read without decoding anything.

    /                attributes: datapipe_table (version of this form), num_rows, fingerprint, matrices (JSON, their names)
    /NAME            (n, k) little-endian, in one piece of the file; attribute columns: JSON, [[name, type, dtype, unit], ...]

`dtype` is numpy's name for the values: booleans are stored as bytes. Null is NaN, and there is none among integers.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.containers.hdf5 import VERSIONS
from datapipe.containers.tables.container import RowsFound, Wanted
from datapipe.core.regular_files import open_file, opened_by_name
from datapipe.errors import FormatError, StorageError
from datapipe.index.tables import ColumnKind, TableColumn, TableFile

NAME = "rows.h5"
GROUP_ROWS = 1 << 17  # rows that are read together where somebody reads in order
_MARK, _VERSION = "datapipe_table", 1
_ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class RowMatrix:
    """One dataset of a file: columns side by side. `dtype`: numpy's name, of all of them."""

    name: str
    dtype: str
    columns: tuple[TableColumn, ...]


@dataclass(frozen=True, slots=True)
class RowFile:
    """An open file: its datasets, mapped. `arrays`: (n, k) each."""

    matrices: tuple[RowMatrix, ...]
    arrays: tuple[NDArray[Any], ...]
    num_rows: int
    fingerprint: str


def is_row_major(path: str) -> bool:
    """Return True if a file says that it holds the rows of a table. Raises StorageError."""
    try:
        with opened_by_name(path) as name, h5py.File(name, "r") as file:
            return _MARK in file.attrs
    except OSError as exc:
        if exc.errno:
            raise StorageError(exc.errno, exc.strerror, path) from exc
        return False  # damaged: what reads it says so


def create(path: Path, matrices: Sequence[RowMatrix], *, num_rows: int, fingerprint: str) -> None:
    """Create the file with room for all rows.

    The bytes depend on the arguments and on what is written alone. Raises StorageError where there is no room.
    """
    with h5py.File(path, "w", libver=VERSIONS, alignment_threshold=1, alignment_interval=_ALIGNMENT) as file:
        names = json.dumps([matrix.name for matrix in matrices])
        file.attrs.update({_MARK: _VERSION, "num_rows": num_rows, "fingerprint": fingerprint, "matrices": names})
        for matrix in matrices:
            creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            creation.set_layout(h5py.h5d.CONTIGUOUS)
            creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            creation.set_obj_track_times(False)
            space = h5py.h5s.create_simple((num_rows, len(matrix.columns)))
            kind = h5py.h5t.py_create(_stored(matrix.dtype))
            dataset = h5py.Dataset(h5py.h5d.create(file.id, matrix.name.encode(), kind, space, creation))
            dataset.attrs["columns"] = json.dumps([[one.name, one.type, one.dtype, one.unit] for one in matrix.columns])
    with path.open("rb+") as opened:
        try:
            os.posix_fallocate(opened.fileno(), 0, os.fstat(opened.fileno()).st_size)  # mapped memory cannot report a full disk
        except OSError as exc:
            raise StorageError(exc.errno, f"{path.parent}: no room for {num_rows} rows ({exc.strerror}); free some") from exc


def open_for_writing(path: Path) -> RowFile:
    """Map a file that `create` made; what is written to its arrays goes into it."""
    return _mapped(path, writes=True)


def flush(path: Path) -> None:
    """Bring what was written to disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def open_rows(path: str | os.PathLike[str]) -> RowFile:
    """Map a file that `create` made. Raises FormatError for any other, also one that is truncated."""
    with open_file(path):
        pass  # a regular file
    return _mapped(Path(path), writes=False)


def _mapped(path: Path, *, writes: bool) -> RowFile:
    try:
        with opened_by_name(path) as place, h5py.File(place, "r") as file:
            if int(file.attrs[_MARK]) != _VERSION:
                raise ValueError(f"version {file.attrs[_MARK]}")
            num_rows, fingerprint = int(file.attrs["num_rows"]), str(file.attrs["fingerprint"])
            names = [str(one) for one in json.loads(file.attrs["matrices"])]  # h5py iterates for ever over damaged objects
            found = [_matrix_of(file[name], num_rows) for name in names]
            if not found:
                raise ValueError(f"{num_rows} rows without columns")
        with path.open("rb+" if writes else "rb") as opened:
            access = mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
            data = mmap.mmap(opened.fileno(), 0, access=access)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, RuntimeError, OverflowError) as exc:
        raise _not_rows(path, exc) from exc
    except OSError as exc:
        if exc.errno is not None and not isinstance(exc, FileNotFoundError):
            raise StorageError(exc.errno, exc.strerror, os.fspath(path)) from exc
        if exc.errno is not None:
            raise
        raise _not_rows(path, exc) from exc
    arrays = []
    for matrix, offset in found:
        shape, dtype = (num_rows, len(matrix.columns)), np.dtype(matrix.dtype)
        if num_rows < 0 or offset + math.prod(shape) * dtype.itemsize > len(data):
            raise FormatError(f"{path}: truncated; convert the table again")
        arrays.append(np.frombuffer(data, dtype, count=math.prod(shape), offset=offset).reshape(shape))
    return RowFile(tuple(matrix for matrix, _ in found), tuple(arrays), num_rows, fingerprint)


def _matrix_of(dataset: Any, num_rows: int) -> tuple[RowMatrix, int]:
    """A dataset and where its data begin. Raises ValueError for one that is not as `create` makes it."""
    offset = dataset.id.get_offset()
    columns = tuple(
        TableColumn(str(name), ColumnKind.NUMBER, str(kind), np.dtype(dtype).name, str(unit))
        for name, kind, dtype, unit in json.loads(dataset.attrs["columns"])
    )
    dtypes = {"bool" if column.dtype == "bool" else dataset.dtype.name for column in columns}
    if offset is None or dataset.shape != (num_rows, len(columns)) or len(dtypes) != 1:
        raise ValueError(f"dataset {dataset.name} is not contiguous rows")
    if dataset.dtype.newbyteorder("=") != _stored(dtypes.copy().pop()) or np.dtype(dataset.dtype).kind not in "iuf":
        raise ValueError(f"dataset {dataset.name} holds {dataset.dtype}")
    return RowMatrix(dataset.name.strip("/"), dtypes.pop(), columns), int(offset)


def _stored(dtype: str) -> np.dtype[Any]:
    return np.dtype(np.uint8 if dtype == "bool" else dtype).newbyteorder("<")


def _not_rows(path: Path, reason: Exception) -> FormatError:
    what = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
    return FormatError(
        f"{path}: not an HDF5 file of a table's rows, or damaged ({what:.100}); make one: datapipe convert TABLE DST --to hdf5"
    )


# -- as a container of tables -------------------------------------------------------------------------


def scan(path: str) -> RowsFound:
    """Return what a file holds. Raises FormatError, StorageError or OSError."""
    rows = open_rows(path)
    columns = {column.name: column for matrix in rows.matrices for column in matrix.columns}
    groups = [min(GROUP_ROWS, rows.num_rows - first) for first in range(0, rows.num_rows, GROUP_ROWS)]
    return RowsFound(columns, groups, rows.fingerprint)


class _Open:
    """Some columns of a file, read in order."""

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        rows = open_rows(path)
        pairs = zip(rows.matrices, rows.arrays, strict=True)
        self._columns = {
            column.name: array[:, number]
            for matrix, array in pairs
            for number, column in enumerate(matrix.columns)
            if column.name in columns
        }

    def read(self, number: int) -> Any:
        """Return the rows that are read together, as a table."""
        here = slice(number * GROUP_ROWS, (number + 1) * GROUP_ROWS)
        return pa.table({name: np.ascontiguousarray(column[here]) for name, column in self._columns.items()})


def open_groups(file: TableFile, wanted: Wanted) -> _Open:
    """Open some columns of a file. Raises as `scan` does."""
    return _Open(file.path, wanted.columns)
