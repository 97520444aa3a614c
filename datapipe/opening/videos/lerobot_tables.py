"""Columns of the Parquet files of LeRobot's datasets: numbers as arrays, and where images lie."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datapipe.containers.mapped import opened_for_library
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.entries import RowGroup

FILES_AT_ONCE = 8
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)


def columns_of(files: Sequence[str], is_wanted: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
    """Return columns of numbers of Parquet files, one after the other: (n,) or (n, k) arrays, lists flattened.

    Raises MissingDataError, StorageError or FormatError.
    """
    parts: dict[str, list[NDArray[Any]]] = {}
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        for some in pool.map(lambda file: _columns_of(file, is_wanted), files):
            for name, values in some.items():
                parts.setdefault(name, []).append(values)
    return {name: np.concatenate(column) for name, column in parts.items()}


def groups_of(name: str, file: str) -> list[RowGroup]:
    """Return the row groups of a column of images in a file. Raises as `columns_of`, also if there is no such column."""
    column = f"{name}.bytes"  # of a struct of these and a path, as Hugging Face's datasets store images
    with _opened(file) as held:
        if column not in {held.schema.column(number).path for number in range(len(held.schema.names))}:
            raise ValueError(f"it has no column {name} of images")
        sizes = [held.metadata.row_group(number).num_rows for number in range(held.metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes]).tolist()
    return [RowGroup("parquet", file, column, number, *pair) for number, pair in enumerate(itertools.pairwise(starts))]


@contextlib.contextmanager
def _opened(file: str) -> Iterator[pq.ParquetFile]:
    """Open a file; errors, also those of the block, say which one."""
    try:
        with opened_for_library(file) as opened:
            yield pq.ParquetFile(opened)
    except FileNotFoundError as exc:
        raise MissingDataError(f"{file}: no such file; get the dataset again") from exc
    except StorageError:
        raise
    except DAMAGE as exc:
        raise FormatError(f"{file}: cannot be read as a table of the dataset ({exc}); get it again") from exc


def _columns_of(file: str, is_wanted: Callable[[str], bool]) -> dict[str, NDArray[Any]]:
    with _opened(file) as held:
        table = held.read([name for name in held.schema_arrow.names if is_wanted(name)])
        found = {name: _numbers(table.column(name), name) for name in table.column_names}
        return {name: values for name, values in found.items() if values is not None}


def _numbers(column: pa.ChunkedArray, name: str) -> NDArray[Any] | None:
    """Return a column as an array, None if it holds no numbers. Raises ValueError for one with nulls."""
    flat, is_list = column.combine_chunks(), False
    while pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type) or pa.types.is_fixed_size_list(flat.type):
        flat, is_list = flat.flatten(), True
    kind = flat.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    if flat.null_count:
        raise ValueError(f"{name} has nulls")
    values: NDArray[Any] = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1) if is_list else values
