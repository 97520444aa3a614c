"""Scan chunks of Lightning's `litdata`: where the values of each sample lie, and its label.

A chunk is a file of packed samples (`peers/packed`), in which each sample begins with the sizes of all its values. How they
are stored is said by the `index.json` beside it.
"""

from __future__ import annotations

from pathlib import Path

from datapipe.codecs.field_values import FieldSpec
from datapipe.containers.mapped import byte_source
from datapipe.errors import FormatError
from datapipe.index.sidecar import SidecarRows
from datapipe.peers.litdata.index_file import leaves_beside
from datapipe.peers.packed import packed_values, sample_bounds
from datapipe.peers.packed_fields import packed_rows

_FORM = "a chunk of LitData's"
_ROWS_BEHIND = b"LDARW01\0"  # the end of a chunk that has its samples as rows of Arrow's, after none of them


def index_shard(path: str | Path) -> tuple[SidecarRows, tuple[FieldSpec, ...]]:
    """Index one chunk, by its path or URL; ids are row numbers.

    Values that are pickled, nested, or of unknown formats are recorded in `unread` of the rows. Raises MissingDataError,
    StorageError or FormatError, naming the chunk.
    """
    where = str(path)
    stored = leaves_beside(where)
    with byte_source(path, _FORM) as data:
        bounds = sample_bounds(data, _FORM, where)
        if bounds[0] == bounds[-1] and data[len(data) - len(_ROWS_BEHIND) : len(data)] == _ROWS_BEHIND:
            raise FormatError(f"{where}: holds its samples as rows of nested values, which are not read; save them as Parquet")
        values = packed_values(data, bounds, [None] * len(stored), where)
        columns = dict(zip(stored, zip(stored.values(), values, strict=True), strict=True))
        return packed_rows(columns, data, "litdata", where)
