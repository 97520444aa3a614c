"""A little data of this kind for trials: clicks, shaped like Criteo's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

TITLE = "clicks.parquet"
DENSE = [f"I{number}" for number in range(1, 14)]
IDS = [f"C{number}" for number in range(1, 27)]
GROUP_ROWS = 1 << 17
_NUM_ROWS = 4 * GROUP_ROWS


def convert_options(path: Path) -> list[str]:
    """Return the options of `datapipe convert` for what was made there: none, as it is loaded where it lies."""
    return []


def make(path: Path, num_rows: int = _NUM_ROWS, *, seed: int = 0) -> None:
    """Write 13 float32 columns, 26 of int64 ids and a label: Parquet, snappy, row groups of 131,072 rows."""
    rng = np.random.default_rng(seed)

    def columns(num: int) -> dict[str, NDArray[Any]]:
        dense: dict[str, NDArray[Any]] = {name: (rng.random(num, dtype=np.float32) * 100).round() for name in DENSE}
        ids = {name: (rng.zipf(1.3, num) % 10 ** (1 + number % 6)).astype(np.int64) for number, name in enumerate(IDS)}
        return dense | ids | {"label": rng.integers(0, 2, num).astype(np.float32)}

    write_groups(path, num_rows, columns)


def write_groups(path: Path, num_rows: int, columns: Callable[[int], dict[str, NDArray[Any]]]) -> None:
    """Write Parquet, a row group at a time. `columns`: returns (n,) arrays by name, for the next n rows."""
    sizes = [min(GROUP_ROWS, num_rows - start) for start in range(0, num_rows, GROUP_ROWS)]
    groups = (pa.table(columns(size)) for size in sizes)
    first = next(groups)
    with path.open("wb") as file, pq.ParquetWriter(file, first.schema, compression="snappy") as writer:
        for group in itertools.chain([first], groups):
            writer.write_table(group, row_group_size=GROUP_ROWS)
