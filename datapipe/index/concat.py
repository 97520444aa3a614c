"""Concatenate several datasets: their samples one after the other, each read from its own place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldSpec
from datapipe.core.errors import OptionError
from datapipe.index.entries import WHOLE_FILE, Description, Entries, Extents, check_positions
from datapipe.index.file_list import FileListIndex
from datapipe.index.manifest import Manifest
from datapipe.index.row_groups import RowGroup, RowGrouping
from datapipe.index.sample_index import SampleIndex
from datapipe.index.selection import Selection

Ints = NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class ConcatIndex:
    """The interface of `SampleIndex` over several datasets. Thread-safe; pickles as its arguments.

    A sample's id is the number of slots of the datasets before its own, plus its id there. Fields are those that all datasets
    have. Raises OptionError where no field is common.
    """

    def __init__(self, parts: Sequence[PartIndex]) -> None:
        self.parts = tuple(parts)
        self._first_id = _starts([part.manifest.num_slots for part in self.parts])
        self._first_position = _starts([len(part) for part in self.parts])
        self.manifest = _concat_manifest(self.parts)

    def __reduce__(self) -> tuple[Callable[..., ConcatIndex], tuple[object, ...]]:
        return ConcatIndex, (self.parts,)

    def __len__(self) -> int:
        return int(self._first_position[-1])

    @property
    def where(self) -> str:
        return " + ".join(part.where for part in self.parts)

    @property
    def is_remote(self) -> bool:
        return any(part.is_remote for part in self.parts)

    @property
    def is_foreign(self) -> bool:
        return any(part.is_foreign for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """A name for these samples in this order, hex: saved states refuse a dataset of another name."""
        return hashlib.sha256(" ".join(part.fingerprint for part in self.parts).encode()).hexdigest()[:16]

    def select(self, positions: Ints) -> Selection:
        """Return the samples at these positions, in this order; they keep their ids."""
        return Selection(self, self.ids(np.asarray(positions, np.int64)))

    def ids(self, positions: Ints) -> Ints:
        """Return (m,) the sample ids at these positions."""
        check_positions(positions, len(self))
        ids = np.empty(len(positions), np.int64)
        for place, rows in self._shared_out(positions, self._first_position):
            ids[rows] = self._first_id[place] + self.parts[place].ids(positions[rows] - self._first_position[place])
        return ids

    def look_up(self, ids: Ints, field: str) -> Entries:
        """Return the labels and the extents of `field` of these samples."""
        found = [
            (rows, self.parts[place].look_up(ids[rows] - self._first_id[place], field))
            for place, rows in self._shared_out(ids, self._first_id)
        ]
        if not found:
            found = [(np.arange(0), self.parts[0].look_up(ids, field))]
        labels = _spread([(rows, entries.labels) for rows, entries in found], len(ids))
        return Entries(ids, labels, _spread_extents([(rows, entries.extents) for rows, entries in found], len(ids)))

    def row_grouping(self, fields: Collection[str], ids: Ints | None = None) -> RowGrouping | None:
        """Return row groups as `SampleIndex.row_grouping` does; a dataset addressed by bytes is one row group among the others.

        None also for a selection.
        """
        groupings = [part.row_grouping(fields) for part in self.parts]
        known = [grouping for grouping in groupings if grouping is not None]
        if ids is not None or not known:
            return None
        starts = [
            first + (np.zeros(1, np.int64) if grouping is None else grouping.starts[:-1])
            for first, grouping in zip(self._first_position, groupings, strict=False)
        ]
        return RowGrouping(np.append(np.concatenate(starts), len(self)), max(grouping.nbytes for grouping in known))

    def stored_at(self, ids: Ints) -> tuple[Ints, Ints]:
        """Return what `SampleIndex.stored_at` does; shards are numbered over all datasets, none of which is a list of files."""
        shards, rows = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        first_shard = _starts([len(part.manifest.shards) for part in self.parts])
        for place, here in self._shared_out(ids, self._first_id):
            part = self.parts[place]
            assert not isinstance(part, FileListIndex)
            found, rows[here] = part.stored_at(ids[here] - self._first_id[place])
            shards[here] = first_shard[place] + found
        return shards, rows

    def shard_paths(self, ids: Ints) -> list[str]:
        """Return the path or URL of the shard, or of the file, of each of these samples."""
        paths = [""] * len(ids)
        for place, here in self._shared_out(ids, self._first_id):
            for row, path in zip(here.tolist(), self.parts[place].shard_paths(ids[here] - self._first_id[place]), strict=True):
                paths[row] = path
        return paths

    def labels(self, ids: Ints | None = None) -> Ints:
        """Return (n,) the label of every sample in dataset order, or of these."""
        if ids is None:
            return np.concatenate([part.labels() for part in self.parts])
        labels = np.empty(len(ids), np.int64)
        for place, rows in self._shared_out(ids, self._first_id):
            part = self.parts[place]
            whole = part.whole if isinstance(part, Selection) else part
            labels[rows] = whole.labels(ids[rows] - self._first_id[place])
        return labels

    def describe(self, id: int) -> Description:
        """Return a description of one sample, for messages."""
        place = int(np.searchsorted(self._first_id, id, side="right")) - 1
        there = self.parts[place].describe(id - int(self._first_id[place]))
        return Description(id, there.path, there.key, there.source)

    def _shared_out(self, numbers: Ints, starts: Ints) -> list[tuple[int, Ints]]:
        """Return the datasets to which ids or positions belong, and the rows of those in each."""
        places = np.searchsorted(starts, numbers, side="right") - 1
        return [(int(place), np.flatnonzero(places == place)) for place in np.unique(places)]


def _concat_manifest(parts: Sequence[PartIndex]) -> Manifest:
    """Return a manifest of what the datasets have in common."""
    manifests = [part.manifest for part in parts]
    first = manifests[0]
    common: tuple[FieldSpec, ...] = tuple(spec for spec in first.fields if all(spec in other.fields for other in manifests))
    if not common:
        listed = "; ".join(f"{part.where}: {', '.join(spec.name for spec in part.manifest.fields)}" for part in parts)
        raise OptionError(f"the datasets have no field in common ({listed})")
    containers = dict.fromkeys(manifest.container for manifest in manifests)
    same_classes = all(manifest.class_to_idx == first.class_to_idx for manifest in manifests)
    sizes = {manifest.image_size for manifest in manifests}
    return Manifest(
        container=" and ".join(containers),
        fields=common,
        shards=tuple(shard for manifest in manifests for shard in manifest.shards),
        classes=first.classes if same_classes else None,
        class_to_idx=first.class_to_idx if same_classes else None,
        image_size=first.image_size if len(sizes) == 1 else None,
    )


def _starts(lengths: Sequence[int]) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))])


def _spread(parts: Sequence[tuple[Ints, NDArray[_Scalar]]], num: int) -> NDArray[_Scalar]:
    whole = np.empty(num, parts[0][1].dtype)
    for rows, values in parts:
        whole[rows] = values
    return whole


def _spread_extents(parts: Sequence[tuple[Ints, Extents]], num: int) -> Extents:
    paths = [""] * num
    prefixes: list[bytes] | None = [b""] * num if any(extents.prefixes for _, extents in parts) else None
    groups: list[RowGroup | None] | None = [None] * num if any(extents.row_groups for _, extents in parts) else None
    for rows, extents in parts:
        for place, row in enumerate(rows.tolist()):
            paths[row] = extents.paths[place]
            if prefixes is not None and extents.prefixes is not None:
                prefixes[row] = extents.prefixes[place]
            if groups is not None and extents.row_groups is not None:
                groups[row] = extents.row_groups[place]
    loose = all(extents.one_file_each for _, extents in parts)
    return Extents(
        paths=paths,
        offset=_spread([(rows, extents.offset) for rows, extents in parts], num),
        nbytes=_spread([(rows, _whole_files(extents)) for rows, extents in parts], num),
        crc32c=_spread([(rows, extents.crc32c) for rows, extents in parts], num),
        has_crc=_spread([(rows, extents.has_crc) for rows, extents in parts], num),
        one_file_each=loose,
        prefixes=prefixes,
        row_groups=groups,
    )


def _whole_files(extents: Extents) -> Ints:
    """Return sizes; whole files stay WHOLE_FILE among other extents."""
    return np.full(len(extents), WHOLE_FILE, np.int64) if extents.one_file_each else extents.nbytes


WholeIndex = SampleIndex | FileListIndex | ConcatIndex
PartIndex = SampleIndex | FileListIndex | Selection  # of a concatenation
AnyIndex = WholeIndex | Selection


def wholes(index: AnyIndex) -> list[SampleIndex | FileListIndex]:
    """Return the datasets that the samples of an index are of."""
    if isinstance(index, Selection):
        return wholes(index.whole)
    return [dataset for part in index.parts for dataset in wholes(part)] if isinstance(index, ConcatIndex) else [index]


def concatenated(indexes: Sequence[AnyIndex]) -> AnyIndex:
    """Return one index of them all.

    Raises OptionError for a selection of a concatenation, whose parts cannot be told apart.
    """
    parts: list[PartIndex] = []
    for index in indexes:
        if isinstance(index, ConcatIndex):
            parts += index.parts
        elif isinstance(index, Selection) and isinstance(index.whole, ConcatIndex):
            raise OptionError(
                f"a selection of several datasets ({index.where}) cannot be concatenated again; select from the whole"
            )
        else:
            parts.append(index)
    return parts[0] if len(parts) == 1 else ConcatIndex(parts)
