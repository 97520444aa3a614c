"""What reads the bytes of samples, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from datapipe.errors import DecodeError, IntegrityError
from datapipe.fetch.local import LocalFiles
from datapipe.fetch.remote import RemoteFiles
from datapipe.fetch.row_groups import RowGroups
from datapipe.index import Extents
from datapipe.joint import AnyIndex
from datapipe.stores.settings import Remote


class Files(Protocol):
    """Reads extents. Thread-safe. `LocalFiles` says what its methods raise."""

    def read(self, extents: Extents, row: int) -> bytes: ...

    def read_each(self, extents: Extents, rows: Sequence[int]) -> list[bytes | DecodeError | IntegrityError]: ...

    def will_need(self, extents: Extents) -> object:
        """Begin to fetch these extents; returns at once. What is returned is to be kept until they have been read."""

    def close(self) -> None: ...


def open_files(index: AnyIndex, *, row_groups: RowGroups | None = None, remote: Remote | None = None) -> Files:
    """Return what reads the samples of an index. `remote`: how, where some of them lie in object stores."""
    local = LocalFiles(row_groups=row_groups)
    return RemoteFiles(local, Remote() if remote is None else remote) if index.is_remote else local
