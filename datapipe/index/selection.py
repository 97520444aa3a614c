"""Some of a dataset's samples, in an order of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datapipe.index.entries import Description, Entries, check_positions
from datapipe.index.manifest import Manifest
from datapipe.index.row_groups import RowGrouping

if TYPE_CHECKING:
    from datapipe.index.concat import WholeIndex


class Selection:
    """Samples of an index, named by their ids, which they keep. Thread-safe; pickles as its arguments.

    `ids`: in the order of the selection; not all of the whole need be among them, and some may come several times.
    """

    def __init__(self, whole: WholeIndex, ids: NDArray[np.int64]) -> None:
        self.whole = whole
        self._ids = ids
        self._groupings: dict[frozenset[str], RowGrouping | None] = {}

    def __reduce__(self) -> tuple[type[Selection], tuple[WholeIndex, NDArray[np.int64]]]:
        return Selection, (self.whole, self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the whole."""
        return self.whole.manifest

    @property
    def where(self) -> str:
        """What to call the dataset in a message."""
        return self.whole.where

    @property
    def is_remote(self) -> bool:
        """Whether some of the data lies in an object store."""
        return self.whole.is_remote

    @property
    def is_foreign(self) -> bool:
        """Whether somebody else wrote some of the data."""
        return self.whole.is_foreign

    @property
    def fingerprint(self) -> str:
        """A name for these samples in this order, hex: saved states refuse a dataset of another name."""
        return hashlib.sha256(self.whole.fingerprint.encode() + self._ids.astype("<i8").tobytes()).hexdigest()[:16]

    def select(self, positions: NDArray[np.int64]) -> Selection:
        """Return the samples at these positions of the selection, in this order."""
        return Selection(self.whole, self.ids(np.asarray(positions, np.int64)))

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (m,) the sample ids at these positions."""
        check_positions(positions, len(self))
        return self._ids[positions]

    def look_up(self, ids: NDArray[np.int64], field: str) -> Entries:
        """Return the labels and the extents of `field` of these samples."""
        return self.whole.look_up(ids, field)

    def row_grouping(self, fields: Collection[str]) -> RowGrouping | None:
        """Return the row groups that an order should keep together, as those of the whole come in this order."""
        wanted = frozenset(fields)
        if wanted not in self._groupings:
            self._groupings[wanted] = self.whole.row_grouping(wanted, self._ids)
        return self._groupings[wanted]

    def stored_at(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (m,) the number of the shard that each sample is stored in, and its row there; not for lists of files."""
        return self.whole.stored_at(ids)  # type: ignore[union-attr]

    def shard_paths(self, ids: NDArray[np.int64]) -> list[str]:
        """Return the path or URL of the shard, or of the file, of each of these samples."""
        return self.whole.shard_paths(ids)

    def labels(self) -> NDArray[np.int64]:
        """Return (n,) the label of every sample, in the order of the selection."""
        return self.whole.labels(self._ids)

    def describe(self, id: int) -> Description:
        """Return a description of one sample, for messages."""
        return self.whole.describe(id)
