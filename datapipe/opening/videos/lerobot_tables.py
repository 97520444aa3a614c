"""Read columns of numbers of the Parquet files of a LeRobot dataset, and where its images lie in them, without trusting them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datapipe.containers.mapped import opened_for_library
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.entries import RowGroup

Columns = dict[str, NDArray[Any]]
FILES_AT_ONCE = 8
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)


def columns_of(files: Sequence[str], wanted: Collection[str]) -> Columns:
    """Return columns of numbers of Parquet files, one after the other: (n,) or (n, k) arrays, lists flattened.

    Columns that hold no numbers are left out. Raises MissingDataError, StorageError or FormatError, also for a column that some
    of the files lack, or that has rows of several lengths.
    """
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        found = dict(zip(files, pool.map(lambda file: _columns_of(file, wanted), files), strict=True))
    parts = [part for part in found.values() if any(map(len, part.values()))] or list(found.values())[:1]
    for file, part in found.items():
        with read_as(file, "does not go on as the table before it"):
            _refuse_unlike(parts[0], part)
    return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def _refuse_unlike(first: Columns, other: Columns) -> None:
    """Raise ValueError for other columns than those of the first file, or of another length of rows."""
    differing = sorted(first.keys() ^ other.keys())
    if differing:
        raise ValueError(f"only one has the column {differing[0]!r:.60} of numbers")
    for name, values in other.items():
        if len(values) and values.shape[1:] != first[name].shape[1:]:
            raise ValueError(f"{name!r:.60} has rows of shape {values.shape[1:]}, not {first[name].shape[1:]}")


def groups_of(name: str, file: str) -> list[RowGroup]:
    """Return the row groups of a column of images in a file. Raises as `columns_of`, also if there is no such column."""
    column = f"{name}.bytes"  # of a struct of these and a path, as Hugging Face's datasets store images
    with _opened_table(file) as held:
        if column not in {held.schema.column(number).path for number in range(len(held.schema.names))}:
            raise ValueError(f"it has no column {name} of images")
        sizes = [held.metadata.row_group(number).num_rows for number in range(held.metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes]).tolist()
    return [RowGroup("parquet", file, column, number, *pair) for number, pair in enumerate(itertools.pairwise(starts))]


@contextlib.contextmanager
def _opened_table(file: str) -> Iterator[pq.ParquetFile]:
    """Open a file; errors, also those of the block, say which one."""
    with read_as(file, "cannot be read as a table of the dataset"), opened_for_library(file) as opened:
        yield pq.ParquetFile(opened)


@contextlib.contextmanager
def read_as(file: str, problem: str) -> Iterator[None]:
    """Translate the errors of a block that reads a file. `problem`: what is said of a damaged one."""
    try:
        yield
    except FileNotFoundError as exc:
        raise MissingDataError(f"{file}: no such file; get the dataset again") from exc
    except (StorageError, FormatError):
        raise
    except _DAMAGE as exc:
        raise FormatError(f"{file}: {problem} ({exc}); get it again") from exc


def _columns_of(file: str, wanted: Collection[str]) -> Columns:
    with _opened_table(file) as held:
        table = held.read([name for name in held.schema_arrow.names if name in wanted])
        found = {name: _numbers(table.column(name), name) for name in table.column_names}
        return {name: values for name, values in found.items() if values is not None}


def _numbers(column: pa.ChunkedArray, name: str) -> NDArray[Any] | None:
    """Return a column as an array, None if it holds no numbers. Raises ValueError for nulls, and rows of several lengths."""
    kind = column.type
    while _is_list(kind):
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    flat = column.combine_chunks()
    while _is_list(flat.type):
        lengths = pc.min_max(pc.list_value_length(flat)).as_py()
        if flat.null_count:
            raise ValueError(f"{name!r:.60} has nulls")
        if lengths["min"] != lengths["max"]:
            raise ValueError(f"{name!r:.60} has rows of {lengths['min']} to {lengths['max']} values")
        flat = flat.flatten()
    if flat.null_count:
        raise ValueError(f"{name!r:.60} has nulls")
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1 if len(column) else 0) if _is_list(column.type) else values


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
