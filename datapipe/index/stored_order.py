"""Samples as they are stored: which lie together in a shard or row group, and which positions of the dataset they have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from datapipe.index.concat import AnyIndex, ConcatIndex, Selection, wholes
from datapipe.index.entries import by_number
from datapipe.index.file_list import FileListIndex
from datapipe.index.sample_index import SampleIndex

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StoredOrder:
    """The samples of an index as they are stored: group by group, a group being what is read as a whole.

    A *place* counts samples in this order.
    """

    index: AnyIndex
    starts: Ints  # (g + 1,) places at which a group begins, and the number of samples
    nbytes: int  # of a group, on average
    _parts: tuple[tuple[SampleIndex, bool], ...] = ()  # of the whole dataset, and whether positions are stored order there
    _part_starts: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    _positions: Ints | None = None  # (n,) of a selection

    def positions_of(self, places: Ints) -> Ints:
        """(m,) the positions in the dataset of these places."""
        if self._positions is not None:
            return self._positions[places]
        positions = np.empty(len(places), np.int64)
        for number, here in by_number(np.searchsorted(self._part_starts, places, side="right") - 1):
            first = self._part_starts[number]
            part, is_in_order = self._parts[number]
            within = places[here] - first
            positions[here] = first + (within if is_in_order else part.positions_as_stored(within))
        return positions

    def shard_of(self, groups: Ints) -> list[str]:
        """The path or URL of the shard that each group lies in."""
        return self.index.shard_paths(self.index.ids(self.positions_of(self.starts[groups])))


def stored_order(index: AnyIndex, fields: Collection[str]) -> StoredOrder | None:
    """Return the stored order of an index, or None if it is, or has, a list of files.

    A group is a shard, or a row group where any of `fields` can only be read by row groups.
    """
    datasets = [dataset for dataset in wholes(index) if isinstance(dataset, SampleIndex)]
    if len(datasets) < len(wholes(index)) or any(dataset.manifest.is_listing for dataset in datasets):
        return None
    parts = index.parts if isinstance(index, ConcatIndex) else (index,)
    if isinstance(index, Selection) and (grouping := index.row_grouping(fields)) is not None:
        return StoredOrder(index, grouping.starts, grouping.nbytes, _positions=np.arange(len(index), dtype=np.int64))
    if any(isinstance(part, Selection) for part in parts):
        return _of_selection(index, datasets)
    starts, of_parts, nbytes, num_groups = [np.zeros(1, np.int64)], [], 0, 0
    for part in datasets:
        grouping = part.row_grouping(fields)
        own = part.shard_starts() if grouping is None else grouping.starts
        starts.append(starts[-1][-1] + own[1:])
        of_parts.append((part, grouping is not None))
        num_groups += len(own) - 1
        shards_nbytes = sum(shard.nbytes for shard in part.manifest.shards)
        nbytes += shards_nbytes if grouping is None else grouping.nbytes * (len(own) - 1)
    part_starts = np.concatenate([[0], np.cumsum([len(part) for part in datasets])]).astype(np.int64)
    return StoredOrder(index, np.concatenate(starts), nbytes // max(1, num_groups), tuple(of_parts), part_starts)


def _of_selection(index: AnyIndex, parts: list[SampleIndex]) -> StoredOrder:
    """Return the stored order of a selection: a group is what it has of a shard."""
    assert not isinstance(index, FileListIndex)
    shards, rows = index.stored_at(index.ids(np.arange(len(index), dtype=np.int64)))
    positions = np.lexsort((rows, shards)).astype(np.int64)
    starts = np.append(np.flatnonzero(np.diff(shards[positions], prepend=-1)), len(index)).astype(np.int64)
    all_shards = [shard for part in parts for shard in part.manifest.shards]
    nbytes = sum(shard.nbytes for shard in all_shards) // max(1, len(all_shards))
    return StoredOrder(index, starts, nbytes, _positions=positions)
