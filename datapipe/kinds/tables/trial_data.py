"""A little data of this kind for trials: clicks, shaped like Criteo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
    writer = None
    for start in range(0, num_rows, GROUP_ROWS):
        num = min(GROUP_ROWS, num_rows - start)
        columns: dict[str, Any] = {name: (rng.random(num, dtype=np.float32) * 100).round() for name in DENSE}
        for number, name in enumerate(IDS):
            columns[name] = (rng.zipf(1.3, num) % 10 ** (1 + number % 6)).astype(np.int64)
        columns["label"] = rng.integers(0, 2, num).astype(np.float32)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="snappy")
        writer.write_table(table, row_group_size=GROUP_ROWS)
    assert writer is not None
    writer.close()
