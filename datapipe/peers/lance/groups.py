"""A version of a Lance dataset as a container of tables: groups of rows that are read at once."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

from datapipe.containers.tables.container import RowsFound, Wanted
from datapipe.containers.tables.types import columns_of
from datapipe.core.regular_files import read_bytes, refuse_irregular
from datapipe.index.tables import TableFile
from datapipe.peers.lance.library import asked
from datapipe.peers.lance.scanner import files_of, group_starts
from datapipe.peers.lance.versions import dataset_at, dataset_of, shown

_GROUP_NBYTES, _MOST_ROWS = 64 << 20, 1 << 16


def scan(path: str) -> RowsFound:
    """Return what a version of a dataset holds, by its manifest. Raises ValueError for a damaged one."""
    dataset = dataset_at(path)
    starts = _starts(dataset, path)
    digest = hashlib.sha256(read_bytes(Path(path))).hexdigest()
    return RowsFound(columns_of(dataset.schema, shown(path)), [end - first for first, end in itertools.pairwise(starts)], digest)


def _starts(dataset: Any, path: str) -> tuple[int, ...]:
    """Return the rows at which the groups of a version begin, and their number; the same ones while the dataset grows."""
    files = [*files_of(dataset, dataset_of(path)[0])]
    for file, _ in files:
        refuse_irregular(file)
    return group_starts(int(asked(dataset.count_rows)), sum(nbytes for _, nbytes in files), _GROUP_NBYTES, _MOST_ROWS)


def open_groups(file: TableFile, wanted: Wanted) -> _Open:
    """Open some columns of a version. Raises ValueError for a damaged one."""
    return _Open(file, wanted)


class _Open:
    """Some columns of a version of a dataset."""

    def __init__(self, file: TableFile, wanted: Wanted) -> None:
        self._path, self._columns = file.path, list(dict.fromkeys(name.partition(".")[0] for name in wanted.columns))
        self._starts = _starts(dataset_at(file.path), file.path)

    def read(self, number: int) -> Any:
        """Return a group of rows as a table. Raises ValueError for values that cannot be read."""
        first, end = self._starts[number : number + 2]
        dataset = dataset_at(self._path)
        table = asked(lambda: dataset.scanner(columns=self._columns, offset=first, limit=end - first).to_table())
        if table.num_rows != end - first:
            raise ValueError(f"{table.num_rows} rows of {end - first}")
        return table
