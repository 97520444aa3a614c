"""`TableLoader`: a `DataLoader` of a `Table`, in one call."""

from __future__ import annotations

from typing import Any

from datapipe.core.deprecation import former_arguments
from datapipe.kinds.former import OF_RANKS, with_ranks
from datapipe.kinds.loader import DataLoader
from datapipe.kinds.tables.data import Table, TableSource

_OF_TABLES = ("columns", "label", "dtypes", "transform", "lists", "cache", "window_nbytes", "remote")


class TableLoader(DataLoader):
    """Give batches of rows of a table as tensors: groups of columns side by side in row-major matrices, and a label.

    >>> loader = datapipe.TableLoader("train/*.parquet", batch_size=65536, shuffle=True, label="label")
    >>> for x, label in loader:                # (65536, columns) float32, and (65536,)
    ...     train(x, label)

    Shorthand for `DataLoader(Table(source, ...), batch_size, shuffle, ...)`: `columns`, `label`, `dtypes`, `transform`, `lists`,
    `cache`, `window_nbytes` and `remote` are those of `Table`, all other arguments those of `DataLoader`.
    """

    @former_arguments(OF_RANKS, with_ranks)
    def __init__(self, source: TableSource, batch_size: int, shuffle: bool = False, **options: Any) -> None:
        table = {name: options.pop(name) for name in _OF_TABLES if name in options}
        super().__init__(Table(source, **table), batch_size, shuffle, **options)
