"""Compose indexes: some of a dataset's samples in an order of their own, and the samples of several datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldSpec
from datapipe.codecs.stored import PLAIN
from datapipe.errors import OptionError
from datapipe.index.entries import WHOLE_FILE, Description, Entries, Extents, RowGrouping, by_number, check_positions, place_in
from datapipe.index.file_list import FileListIndex
from datapipe.index.manifest import Manifest
from datapipe.index.sample_index import SampleIndex

Ints = NDArray[np.int64]


class Selection:
    """The interface of `SampleIndex` over some samples of an index, which keep their ids. Thread-safe; pickles as its arguments.

    `ids`: in the order of the selection; not all of the whole need be among them, and some may come several times.
    """

    def __init__(self, whole: WholeIndex, ids: Ints) -> None:
        self.whole = whole
        self._ids = ids
        self._groupings: dict[frozenset[str], RowGrouping | None] = {}

    def __reduce__(self) -> tuple[type[Selection], tuple[WholeIndex, Ints]]:
        return Selection, (self.whole, self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def manifest(self) -> Manifest:
        return self.whole.manifest

    @property
    def where(self) -> str:
        return self.whole.where

    @property
    def is_remote(self) -> bool:
        return self.whole.is_remote

    @property
    def is_foreign(self) -> bool:
        return self.whole.is_foreign

    former_fingerprint = ""  # of no set that was converted

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.whole.fingerprint.encode() + self._ids.astype("<i8").tobytes()).hexdigest()[:16]

    def ids(self, positions: Ints) -> Ints:
        check_positions(positions, len(self))
        return self._ids[positions]

    def look_up(self, ids: Ints, field: str) -> Entries:
        return self.whole.look_up(ids, field)

    def row_grouping(self, fields: Collection[str]) -> RowGrouping | None:
        """Return the row groups that an order should keep together, as those of the whole come in this order."""
        wanted = frozenset(fields)
        if wanted not in self._groupings:
            self._groupings[wanted] = self.whole.row_grouping(wanted, self._ids)
        return self._groupings[wanted]

    def stored_at(self, ids: Ints) -> tuple[Ints, Ints]:
        """Return (m,) the number of the shard that each sample is stored in, and its row there; not for lists of files."""
        return self.whole.stored_at(ids)  # type: ignore[union-attr]

    def shard_paths(self, ids: Ints) -> list[str]:
        return self.whole.shard_paths(ids)

    def labels(self, ids: Ints | None = None) -> Ints:
        """Return (n,) the label of every sample, in the order of the selection, or of these."""
        return self.whole.labels(self._ids if ids is None else ids)

    def describe(self, id: int) -> Description:
        return self.whole.describe(id)


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

    former_fingerprint = ""  # of no set that was converted

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(" ".join(part.fingerprint for part in self.parts).encode()).hexdigest()[:16]

    def ids(self, positions: Ints) -> Ints:
        check_positions(positions, len(self))
        ids = np.empty(len(positions), np.int64)
        for place, rows in self._shared_out(positions, self._first_position):
            ids[rows] = self._first_id[place] + self.parts[place].ids(positions[rows] - self._first_position[place])
        return ids

    def look_up(self, ids: Ints, field: str) -> Entries:
        shares = self._shared_out(ids, self._first_id) or [(0, np.arange(0))]
        found = [self.parts[place].look_up(ids[rows] - self._first_id[place], field) for place, rows in shares]
        back = np.argsort(np.concatenate([rows for _, rows in shares]))
        labels = np.concatenate([entries.labels for entries in found])[back]
        return Entries(ids, labels, _joined([entries.extents for entries in found]).take(back.tolist()))

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
        paths = [""] * len(ids)
        for place, here in self._shared_out(ids, self._first_id):
            for row, path in zip(here.tolist(), self.parts[place].shard_paths(ids[here] - self._first_id[place]), strict=True):
                paths[row] = path
        return paths

    def labels(self, ids: Ints | None = None) -> Ints:
        if ids is None:
            return np.concatenate([part.labels() for part in self.parts])
        labels = np.empty(len(ids), np.int64)
        for place, rows in self._shared_out(ids, self._first_id):
            labels[rows] = self.parts[place].labels(ids[rows] - self._first_id[place])
        return labels

    def describe(self, id: int) -> Description:
        place, there = place_in(self._first_id, id)
        return replace(self.parts[place].describe(there), id=id)

    def _shared_out(self, numbers: Ints, starts: Ints) -> list[tuple[int, Ints]]:
        """Return the datasets to which ids or positions belong, and the rows of those in each."""
        return by_number(np.searchsorted(starts, numbers, side="right") - 1)


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
        is_listing=all(manifest.is_listing for manifest in manifests),
    )


def _starts(lengths: Sequence[int]) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))])


def _joined(parts: Sequence[Extents]) -> Extents:
    """Return the extents of all parts one after the other."""
    has_codecs = any(part.codecs for part in parts)
    is_loose = all(part.one_file_each for part in parts)
    sizes = [np.full(len(part), WHOLE_FILE, np.int64) if part.one_file_each else part.nbytes for part in parts]
    return Extents(
        paths=[path for part in parts for path in part.paths],
        offset=np.concatenate([part.offset for part in parts]),
        nbytes=np.concatenate(sizes),
        crc32c=np.concatenate([part.crc32c for part in parts]),
        has_crc=np.concatenate([part.has_crc for part in parts]),
        one_file_each=is_loose,
        codecs=[one for part in parts for one in part.codecs or [PLAIN] * len(part)] if has_codecs else None,
    )


WholeIndex = SampleIndex | FileListIndex | ConcatIndex
PartIndex = SampleIndex | FileListIndex | Selection  # of a concatenation
AnyIndex = WholeIndex | Selection


def wholes(index: AnyIndex) -> list[SampleIndex | FileListIndex]:
    """Return the datasets that the samples of an index are of."""
    if isinstance(index, Selection):
        return wholes(index.whole)
    return [dataset for part in index.parts for dataset in wholes(part)] if isinstance(index, ConcatIndex) else [index]


def select(index: AnyIndex, positions: Ints) -> Selection:
    """Return the samples at these positions, in this order; they keep their ids. Negative positions count from the end."""
    positions = np.asarray(positions, np.int64)
    ids = index.ids(np.where(positions < 0, positions + len(index), positions))
    return Selection(index.whole if isinstance(index, Selection) else index, ids)


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


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """The number of each position among those of its sample, so that a sample that is repeated is augmented differently."""

    number: Ints  # (n,) earlier positions of the same sample
    most: int  # largest number of positions of one sample

    @staticmethod
    def of(index: AnyIndex) -> Repeats | None:
        """Return the repeats of an index; None if no sample has several positions."""
        parts = index.parts if isinstance(index, ConcatIndex) else (index,)
        if not any(isinstance(part, Selection) for part in parts):
            return None
        ids = index.ids(np.arange(len(index), dtype=np.int64))
        if (np.diff(ids) > 0).all():
            return None
        order = np.argsort(ids, kind="stable")
        begins = np.flatnonzero(np.append(True, np.diff(ids[order]) > 0))
        if len(begins) == len(ids):
            return None
        sizes = np.diff(np.append(begins, len(ids)))
        number = np.empty(len(ids), np.int64)
        number[order] = np.arange(len(ids), dtype=np.int64) - np.repeat(begins, sizes)
        return Repeats(number, int(sizes.max()))

    def occurrences(self, positions: Ints, before: Ints | None) -> Ints:
        """Return (m,) a number unique among the occurrences of a sample; `before`: how often each position came already."""
        number = self.number[positions]
        return number if before is None else number + self.most * before
