"""Read a field's values at the places that its shard's index names, by bytes or by rows."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path

from datapipe.containers.formats import read_rows
from datapipe.index.entries import RowGroup


def is_by_rows(path: Path, container: str, field: str = "image") -> bool:
    """Whether the index addresses the field by rows."""
    rows, _ = importlib.import_module(f"datapipe.containers.{container}.scanner").index_shard(path)
    return rows.columns[field].column is not None


def values_of(path: Path, container: str, field: str = "image") -> list[bytes]:
    """Of every sample of the shard."""
    rows, _ = importlib.import_module(f"datapipe.containers.{container}.scanner").index_shard(path)
    column = rows.columns[field]
    if column.column is None:
        data, places = path.read_bytes(), zip(column.offset.tolist(), column.nbytes.tolist(), strict=True)
        return [column.prefix + data[offset : offset + nbytes] for offset, nbytes in places]
    found: list[bytes] = []
    for number, (first, end) in enumerate(itertools.pairwise(rows.row_groups)):
        values = read_rows(RowGroup(container, str(path), column.column, number, first, end))
        found += [values[row] for row in range(end - first)]
    return found
