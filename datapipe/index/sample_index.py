"""Locate the samples of a dataset.

A `SampleIndex` gives for sample ids: which file, which bytes, which checksum, which label. It reads
sidecars as they are needed and keeps a bounded number open, so a dataset of ten million samples opens
at once. Nothing that uses it depends on formats.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.stored import PLAIN, absent, prefixed
from datapipe.core.regular_files import leads_out, path_inside
from datapipe.errors import FormatError
from datapipe.index.entries import (
    Codec,
    Description,
    Entries,
    Extents,
    RowGroup,
    RowGrouping,
    by_number,
    check_positions,
    why_bad,
)
from datapipe.index.manifest import Manifest
from datapipe.index.open_sidecars import OpenSidecars, Sidecar
from datapipe.index.remote_set import RemoteSet
from datapipe.order.sample_order import Permutation

_MAX_FOLDERS = 1 << 16  # remembered


class SampleIndex:
    """The samples of a dataset in shards. Thread-safe; pickles as its arguments.

    `manifest` says which shards there are; they lie in `data_directory`, their sidecars in `sidecar_directory` (the same for
    converted datasets). `place`: what is listed, where that is not the directory itself, such as an archive. `remote`: where the
    shards lie, if that is an object store; both directories are then the one in which it keeps copies of sidecars.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        data_directory: Path,
        sidecar_directory: Path,
        remote: RemoteSet | None = None,
        place: str = "",
    ) -> None:
        self.manifest = manifest
        self.data_directory = data_directory
        self.sidecar_directory = sidecar_directory
        self.remote = remote
        self._place = place
        self._sound_folders: set[str] = set()  # of a listing, those that were seen to lie within it
        shards = manifest.shards
        self._num_samples = manifest.num_samples
        self._first_slot = np.array([shard.first_slot for shard in shards], np.int64)
        self._top = str(data_directory)
        if remote is None:
            self._shard_paths = [os.path.join(data_directory, shard.name) for shard in shards]
        else:
            self._shard_paths = [remote.shard_url(shard.name) for shard in shards]
        self._skipped = [np.array(shard.skipped, np.int64) for shard in shards]
        key = manifest.permutation_key
        self._permutation = None if key is None else Permutation(manifest.num_slots, key)
        self._missing = self._missing_ids()
        self._sidecars = OpenSidecars(manifest, data_directory=data_directory, sidecar_directory=sidecar_directory, remote=remote)
        self._groupings: dict[frozenset[str], RowGrouping | None] = {}

    def __reduce__(self) -> tuple[Callable[..., SampleIndex], tuple[object, ...]]:
        make = functools.partial(
            SampleIndex,
            data_directory=self.data_directory,
            sidecar_directory=self.sidecar_directory,
            remote=self.remote,
            place=self._place,
        )
        return make, (self.manifest,)

    def __len__(self) -> int:
        return self._num_samples

    @property
    def where(self) -> str:
        """The name of the dataset in messages."""
        return self._place or (str(self.data_directory) if self.remote is None else str(self.remote.location))

    @property
    def is_remote(self) -> bool:
        """True if the shards lie in an object store."""
        return self.remote is not None

    @property
    def is_foreign(self) -> bool:
        """True if datapipe did not write the data: datapipe's shards have their index next to them."""
        return self.sidecar_directory != self.data_directory

    @property
    def has_images(self) -> bool:
        return any(field.name == "image" for field in self.manifest.fields)

    @property
    def fingerprint(self) -> str:
        """A name for these samples in this order, hex: saved states refuse a dataset of another name."""
        return self.manifest.fingerprint

    @property
    def former_fingerprint(self) -> str:
        """The fingerprint of the set that these samples were converted from, whose saved states go on here; "" without one."""
        return self.manifest.former_fingerprint

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (m,) the sample ids at these positions of the dataset: ascending over all of it."""
        check_positions(positions, len(self))
        if not len(self._missing):
            return positions
        return positions + np.searchsorted(self._missing - np.arange(len(self._missing)), positions, side="right")

    def look_up(self, ids: NDArray[np.int64], field: str) -> Entries:
        """Return the labels and the extents of `field` of these samples."""
        shards, rows = self._locate(ids)
        num = len(ids)
        labels, offset, nbytes = (np.empty(num, np.int64) for _ in range(3))
        crc32c, has_crc = np.empty(num, np.uint32), np.empty(num, np.uint8)
        paths: list[str] = [""] * num
        codecs: list[Codec] | None = None
        is_whole = self.manifest.is_listing
        self._sidecars.fetch(shards)
        by_shard = np.argsort(shards, kind="stable")
        starts = np.flatnonzero(np.diff(shards[by_shard], prepend=-1))
        for members in np.split(by_shard, starts[1:]) if num else ():
            shard = int(shards[members[0]])
            sidecar, here = self._sidecar(shard, field), rows[members]
            labels[members] = sidecar.labels[here]
            offset[members] = sidecar.offsets(field)[here]
            nbytes[members] = sidecar.nbytes(field)[here]
            crc32c[members] = sidecar.crc32c(field)[here]
            has_crc[members] = sidecar.has_crc(field)[here]
            is_whole = is_whole and field not in sidecar.ranges and field not in sidecar.values_file
            found = self._paths(shard, sidecar, field, here)
            for member, path in zip(members.tolist(), found, strict=True):
                paths[member] = path
            stored = self._codecs(shard, sidecar, field, here)
            if self._place and field not in sidecar.values_file:  # the folders of a directory are compared when it is opened
                stored = self._without_outside(found, stored)
            if stored is not None:
                codecs = codecs or [PLAIN] * num
                for member, codec in zip(members.tolist(), stored, strict=True):
                    codecs[member] = codec
        return Entries(ids, labels, Extents(paths, offset, nbytes, crc32c, has_crc, one_file_each=is_whole, codecs=codecs))

    def row_grouping(self, fields: Collection[str], ids: NDArray[np.int64] | None = None) -> RowGrouping | None:
        """Return the row groups that an order should keep together, where any of these fields is addressed by rows.

        `ids`: of a selection, in its order. None where all fields are addressed by bytes, which may be read in any order. A
        shard in which they are is one row group among the others.
        """
        wanted = frozenset(fields)
        if ids is not None:
            return self._find_row_grouping(wanted, ids)
        if wanted not in self._groupings:
            self._groupings[wanted] = self._find_row_grouping(wanted)
        return self._groupings[wanted]

    def shard_starts(self) -> NDArray[np.int64]:
        """Return (s + 1,) the number of samples that are stored before each shard, and in all."""
        return np.cumsum([0, *(shard.num_samples for shard in self.manifest.shards)], dtype=np.int64)

    def positions_as_stored(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (m,) the positions of the samples stored at these places, which count shard by shard."""
        slots = places
        if len(self._missing):
            skipped = np.concatenate(self._skipped)
            slots = places + np.searchsorted(skipped - np.arange(len(skipped)), places, side="right")
        if self._permutation is None:
            return places
        ids = self._permutation(slots)
        return ids - np.searchsorted(self._missing, ids) if len(self._missing) else ids

    def stored_at(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (m,) the number of the shard that each sample is stored in, and its row there."""
        return self._locate(ids)

    def sidecar(self, shard: int) -> Sidecar:
        """Return the index of one shard, which was checked when it was opened."""
        return self._sidecars[shard]

    def shard_path(self, shard: int) -> str:
        """Return the path or URL of one shard."""
        return self._shard_paths[shard]

    def shard_paths(self, ids: NDArray[np.int64]) -> list[str]:
        """Return the path or URL of the shard, or of the file, of each of these samples."""
        return [self._shard_paths[shard] for shard in self._locate(ids)[0].tolist()]

    def labels(self, ids: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Return (n,) the label of every sample in dataset order, or of these; reads every sidecar that has one of them."""
        self._sidecars.refuse_claims()
        if ids is None:
            ids = self.ids(np.arange(len(self), dtype=np.int64))
        shards, rows = self._locate(ids)
        labels = np.empty(len(ids), np.int64)
        for shard, here in by_number(shards):
            labels[here] = self._sidecars[shard].labels[rows[here]]
        return labels

    def describe(self, id: int) -> Description:
        """Return a description of one sample, for messages."""
        shards, rows = self._locate(np.array([id], np.int64))
        sidecar, row = self._sidecars[int(shards[0])], int(rows[0])
        if not self.manifest.is_listing:
            return Description(id, self._shard_paths[int(shards[0])], sidecar.key(row), os.fsdecode(sidecar.source(row)))
        if self._place:  # a file, which says what the sample is; its own name may be no path
            return Description(id, self._place, sidecar.key(row), "")
        source = sidecar.source(row)
        named = (sidecar.paths(name, np.array([row])) for name in sorted(sidecar.ranges))  # files that hold several samples
        holder = next((paths[0] for paths in named if paths), source)
        return Description(id, self._loose_path(sidecar, holder or source), sidecar.key(row), "")

    def _paths(self, shard: int, sidecar: Sidecar, field: str, rows: NDArray[np.int64]) -> list[str]:
        """Return the file that holds a field of each of these rows of a shard."""
        if not self.manifest.is_listing:
            return [self._shard_paths[shard]] * len(rows)
        values_file = sidecar.values_file.get(field)
        if values_file is not None:
            return [path_inside(str(self.sidecar_directory), values_file, named_in=sidecar.path)] * len(rows)
        named = sidecar.paths(field, rows)
        if named is None:
            return [self._loose_path(sidecar, sidecar.source(row)) for row in rows.tolist()]
        full: dict[bytes, str] = {}
        paths: list[str] = []
        for row, name in zip(rows.tolist(), named, strict=True):
            name = name or sidecar.source(row)
            if name not in full:
                full[name] = self._loose_path(sidecar, name)
            paths.append(full[name])
        return paths

    def _codecs(self, shard: int, sidecar: Sidecar, field: str, rows: NDArray[np.int64]) -> Sequence[Codec] | None:
        """Return how a field of each of these rows of a shard is stored; None if as its bytes."""
        if prefix := sidecar.prefixes.get(field):
            return [prefixed(prefix)] * len(rows)
        column = sidecar.row_columns.get(field)
        if column is None:
            return sidecar.codecs(field, rows)
        starts, path = sidecar.row_groups, self._shard_paths[shard]
        numbers = np.searchsorted(starts, sidecar.offsets(field)[rows], side="right") - 1
        made = {
            number: RowGroup(self.manifest.container, path, column, number, int(starts[number]), int(starts[number + 1]))
            for number in np.unique(numbers).tolist()
        }
        return [made[number] for number in numbers.tolist()]

    def _find_row_grouping(self, wanted: frozenset[str], ids: NDArray[np.int64] | None = None) -> RowGrouping | None:
        if not self.manifest.has_row_groups or self.manifest.takes_rows:
            return None
        self._sidecars.refuse_claims()
        starts: list[NDArray[np.int64]] = []
        nbytes = num_groups = 0
        for shard, first in enumerate(self._first_slot.tolist()):
            sidecar = self._sidecars.opened(shard)  # not kept open, as all of them are read
            by_rows = wanted & sidecar.row_columns.keys()
            nbytes += sum(int(sidecar.nbytes(name).sum()) for name in by_rows)
            num_groups += len(sidecar.row_groups) - 1 if by_rows else 0
            starts.append(first + (sidecar.row_groups[:-1] if by_rows else np.zeros(1, np.int64)))
        if not num_groups:
            return None
        if ids is None:
            ids = self.ids(np.arange(len(self), dtype=np.int64))
        groups = np.searchsorted(np.concatenate(starts), ids, side="right")
        begins = np.flatnonzero(np.diff(groups, prepend=-1)) if len(groups) else np.zeros(1, np.int64)
        return RowGrouping(np.append(begins, len(ids)), nbytes // num_groups)

    def _locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard number of each id, and the row within the shard."""
        slots = ids if self._permutation is None else self._permutation.inverse(ids)
        shards = np.searchsorted(self._first_slot, slots, side="right") - 1
        rows = slots - self._first_slot[shards]
        if len(self._missing):
            for number, shard in enumerate(shards.tolist()):
                if len(self._skipped[shard]):
                    rows[number] -= np.searchsorted(self._skipped[shard], slots[number])
        return shards, rows

    def _missing_ids(self) -> NDArray[np.int64]:
        slots = np.concatenate([np.empty(0, np.int64), *self._skipped])
        return np.sort(slots if self._permutation is None else self._permutation(slots))

    def _sidecar(self, shard: int, field: str) -> Sidecar:
        sidecar = self._sidecars[shard]
        if field not in sidecar.field_names:
            raise FormatError(
                f"{self._shard_paths[shard]}: no field {field!r} (has: {', '.join(sidecar.field_names)}); pass one of those"
            )
        return sidecar

    def _without_outside(self, paths: list[str], codecs: Sequence[Codec] | None) -> Sequence[Codec] | None:
        """Return the codecs, with a reason in place of those of files to which a link made since the listing leads outside."""
        outside = {path for path in set(paths) if self._is_outside(path)}
        if not outside:
            return codecs
        reason = absent(f"a link leads out of {self._top}; copy or bind-mount its target")
        known = codecs or [PLAIN] * len(paths)
        return [reason if path in outside and not why_bad(codec) else codec for path, codec in zip(paths, known, strict=True)]

    def _is_outside(self, path: str) -> bool:
        """Return True if links lead from a file of the listing out of its root; folders are looked at once."""
        folder = path.rpartition("/")[0]
        if folder not in self._sound_folders:
            if leads_out(self._top, folder):
                return True
            if len(self._sound_folders) >= _MAX_FOLDERS:
                self._sound_folders.clear()
            self._sound_folders.add(folder)
        return os.path.islink(path) and leads_out(self._top, path)

    def _loose_path(self, sidecar: Sidecar, name: bytes) -> str:
        return path_inside(self._top, os.fsdecode(name), named_in=sidecar.path, follows=True)
