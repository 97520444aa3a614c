"""Read values of a Lance dataset: rows by their numbers, or those of a range."""

from __future__ import annotations

from collections.abc import Sequence

from datapipe.errors import DecodeError
from datapipe.index.entries import RowGroup
from datapipe.peers.lance import columns
from datapipe.peers.lance.library import DAMAGE as LIBRARY_DAMAGE
from datapipe.peers.lance.versions import dataset_at

DAMAGE = (OSError, *LIBRARY_DAMAGE)


class LanceRows:
    """The values of a range of rows; see `index.entries.Rows`."""

    __slots__ = ("_values", "nbytes")

    def __init__(self, values: list[bytes | DecodeError]) -> None:
        self._values = values
        self.nbytes = sum(len(value) for value in values if isinstance(value, bytes))

    def __getitem__(self, row: int) -> bytes:
        value = self._values[row] if 0 <= row < len(self._values) else DecodeError(f"no row {row} of {len(self._values)}")
        if isinstance(value, DecodeError):
            raise value
        return value


def read_rows(group: RowGroup) -> LanceRows:
    """Read one column of a range of rows. Raises DAMAGE."""
    dataset = dataset_at(group.path)
    return LanceRows(columns.scan(dataset, columns.column_named(dataset.schema, group.column), group.first, len(group)))


def take_rows(path: str, column: str, rows: Sequence[int]) -> list[bytes | DecodeError]:
    """Return one column of rows by their numbers, in that order. Raises DAMAGE."""
    dataset = dataset_at(path)
    return columns.take(dataset, columns.column_named(dataset.schema, column), rows)
