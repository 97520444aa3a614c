"""Small tables whose every value is known from its row number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def table_of(rows: np.ndarray) -> pa.Table:
    """Columns that are functions of the row number: `row`, floats `I0` to `I2`, ids `C0` and `C1`, and `label`."""
    columns = {"row": rows.astype(np.int64)}
    columns |= {f"I{j}": (rows * (j + 1) / 8).astype(np.float32) for j in range(3)}
    columns |= {f"C{j}": (rows * 7 + j).astype(np.int32) for j in range(2)}
    columns["label"] = (rows % 2).astype(np.float32)
    return pa.table(columns)


def write_table(path: Path, num_rows: int, *, group_rows: int = 100, first: int = 0) -> Path:
    """One Parquet file of rows from `first` on."""
    pq.write_table(table_of(np.arange(first, first + num_rows)), path, row_group_size=group_rows)
    return path


def write_groups(path: Path, sizes: Sequence[int], *, first: int = 0) -> Path:
    """One Parquet file whose row groups have these sizes."""
    with pq.ParquetWriter(path, table_of(np.arange(0)).schema) as writer:
        for size in sizes:
            writer.write_table(table_of(np.arange(first, first + size)), row_group_size=max(1, size))
            first += size
    return path
