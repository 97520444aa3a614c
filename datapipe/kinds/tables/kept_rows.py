"""Keep a table's finished rows on disk: write them as the first epoch reads them, map them from the second epoch on.

The file is row-major, with a dataset for each matrix of the layout. Processes of a node share it: each writes the rows that it
reads, and appends to a log which ones these were. Whoever comes to the second epoch first reads what nobody has, and gives the
file its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipe.columns.layout import Matrix, MatrixColumn, MatrixLayout
from datapipe.core.user_cache import TABLES, one_at_a_time, private_directory
from datapipe.errors import OptionError, StorageError
from datapipe.index.tables import ColumnKind, TableColumn, TableGroup, TableIndex
from datapipe.kernel.cache_settings import Cache
from datapipe.kinds.tables.arrow import RowGather, StoredMatrix

_VERSION = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ENTRY = np.dtype([("start", "<i8"), ("stop", "<i8")])  # of the log


def cache_directory(cache: Cache) -> Path:
    """Return the directory of a cache. Raises OptionError for one in memory or with a capacity: all rows are kept."""
    directory = cache.directory(TABLES)
    if directory is None:
        raise OptionError(f"cache is {cache.where!r}; choose 'disk' or a directory: mapped rows are in memory where it has room")
    if cache.nbytes is not None:
        raise OptionError(f"cache has nbytes={cache.nbytes}, and a table's rows are all kept; leave it out")
    return directory


def mapped_rows(path: str | os.PathLike[str], layout: MatrixLayout, whole: TableGroup) -> RowGather:
    """Return the rows of a row-major file, mapped. `whole`: all of them, for messages."""
    from datapipe.containers.hdf5.row_major import open_rows

    opened = open_rows(path)
    datasets = tuple(
        StoredMatrix(tuple(column.name for column in matrix.columns), array)
        for matrix, array in zip(opened.matrices, opened.arrays, strict=True)
    )
    return RowGather(datasets, layout, whole)


class KeptRows:
    """The finished rows of a table under a layout, in `directory`. Thread-safe.

    Raises StorageError where they cannot be kept there.
    """

    def __init__(self, directory: Path, index: TableIndex, layout: MatrixLayout) -> None:
        self._directory, self._index, self._layout = directory, index, layout
        times = [f"{os.path.realpath(file.path)} {file.mtime_ns}" for file in index.files]
        about = f"{_VERSION}\n{index.fingerprint}\n{layout.fingerprint}\n{times}"
        self.name = hashlib.sha256(about.encode(errors="surrogateescape")).hexdigest()[:24]
        self.path = directory / f"{self.name}.h5"
        self._part, self._log = directory / f"{self.name}.part", directory / f"{self.name}.log"
        self._arrays: tuple[NDArray[Any], ...] | None = None  # of the file in the making
        self._log_descriptor: int | None = None
        self._is_done = False

    @property
    def is_complete(self) -> bool:
        """Return True if all rows are there."""
        return self.path.exists()

    def open_for_writing(self) -> None:
        """Make or join the file in the making; nothing where all rows are there."""
        from datapipe.containers.hdf5 import row_major

        if self.is_complete or self._arrays is not None:
            return
        with self._locked():
            if self.path.exists():
                return
            boot = _BOOT_ID.read_bytes().strip()
            if not (self._part.exists() and self._log.exists() and self._log.read_bytes()[: len(boot)] == boot):
                # of another boot: rows in the log may never have come to the disk
                self._log.unlink(missing_ok=True)
                matrices = [_stored(matrix) for matrix in self._layout.matrices]
                row_major.create(self._part, matrices, num_rows=len(self._index), fingerprint=self.name)
                self._log.write_bytes(boot)
            self._arrays = row_major.open_for_writing(self._part).arrays
            self._log_descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def put(self, first: int, values: Sequence[NDArray[Any]]) -> None:
        """Keep the rows of the table from `first` on: (n, width) of each matrix."""
        if self._is_done or self._arrays is None or self._log_descriptor is None:
            return
        stop = first + len(values[0])
        for array, part in zip(self._arrays, values, strict=True):
            array[first:stop] = part
        os.write(self._log_descriptor, np.array([(first, stop)], _ENTRY).tobytes())

    def complete(self, fill: Callable[[int, int, int], None], *, num_threads: int) -> RowGather:
        """Return the rows, mapped. `fill(group, start, stop)` is called for missing rows of a row group, and must `put` them.

        Other processes wait meanwhile. Raises what `fill` raises.
        """
        from datapipe.containers.hdf5 import row_major

        self.open_for_writing()
        if not self.is_complete:
            with self._locked():
                if not self.path.exists():
                    with ThreadPoolExecutor(max_workers=max(1, num_threads)) as pool:
                        list(pool.map(lambda piece: fill(*piece), list(self._missing())))
                    row_major.flush(self._part)
                    os.replace(self._part, self.path)
                    self._log.unlink(missing_ok=True)
        self._is_done = True
        return mapped_rows(self.path, _plain(self._layout), TableGroup(self._index.files[0], 0, len(self._index)))

    def __del__(self) -> None:
        if self._log_descriptor is not None:  # not before: a thread of an older pass may still be about to write to it
            os.close(self._log_descriptor)

    def _missing(self) -> Iterator[tuple[int, int, int]]:
        """Yield (row group, start, stop) of the rows that are not in the log."""
        data = self._log.read_bytes()[len(_BOOT_ID.read_bytes().strip()) :]
        entries = np.sort(np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY), order="start")
        place, gaps = 0, []
        for start, stop in [*entries.tolist(), (len(self._index), len(self._index))]:
            if start > place:
                gaps.append((place, start))
            place = max(place, stop)
        starts = self._index.starts
        for begin, end in gaps:
            number = int(np.searchsorted(starts, begin, side="right")) - 1
            while begin < end:
                stop = min(end, int(starts[number + 1]))
                yield number, begin - int(starts[number]), stop - int(starts[number])
                begin, number = stop, number + 1

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(private_directory(self._directory))
                stack.enter_context(one_at_a_time(self._directory / f"{self.name}.lock"))
            except OSError as exc:
                raise StorageError(
                    exc.errno, f"cache: {self._directory}: cannot be used ({exc.strerror}); pass another one"
                ) from exc
            yield


def _columns(matrix: Matrix) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn(f"{matrix.name}/{feature.name}", ColumnKind.NUMBER, matrix.dtype, matrix.dtype) for feature in matrix.features
    )


def _stored(matrix: Matrix) -> Any:
    from datapipe.containers.hdf5.row_major import RowMatrix

    return RowMatrix(hashlib.sha256(matrix.name.encode()).hexdigest()[:16], matrix.dtype, _columns(matrix))


def _plain(layout: MatrixLayout) -> MatrixLayout:
    """Return the layout of finished values, without operations."""

    def plain(matrix: Matrix) -> Matrix:
        features = tuple(MatrixColumn(column, matrix.dtype) for column in _columns(matrix))
        return Matrix(matrix.name, features, matrix.dtype, matrix.is_vector)

    return MatrixLayout(tuple(map(plain, layout.groups)), None if layout.label is None else plain(layout.label))
