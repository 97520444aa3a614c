"""Where the samples of a dataset lie.

A `SampleIndex` answers for sample ids: which file, which bytes, which checksum, which label. It reads
sidecars as they are needed and keeps a bounded number open, so a dataset of ten million samples opens
at once. Nothing after it knows formats.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datapipe.core.errors import FormatError, MissingDataError, OptionError
from datapipe.core.printable import printable
from datapipe.core.regular_files import path_inside
from datapipe.index.manifest import MANIFEST_NAME, Manifest, ShardInfo
from datapipe.index.remote_set import ConvertedSet, RemoteShards
from datapipe.index.row_groups import CONTAINERS, RowGroup, RowGrouping
from datapipe.index.sidecar import ROW_NBYTES, SIDECAR_SUFFIX, Sidecar
from datapipe.order.sample_order import Permutation
from datapipe.stores.waits import waiting

MAX_OPEN_SIDECARS = 4096  # a map each; Linux allows a process 65,530

WHOLE_FILE = -1  # in place of a number of bytes


@dataclass(frozen=True, slots=True)
class Extents:
    """Where one field of some samples lies: bytes of a file, or a row of a row group."""

    paths: list[str]  # (m,) file of each
    offset: NDArray[np.int64]  # (m,) bytes; the row of the shard where there is a row group
    nbytes: NDArray[np.int64]  # (m,), or WHOLE_FILE; with a row group about what the value takes, 0 where nobody knows
    crc32c: NDArray[np.uint32]  # (m,)
    has_crc: NDArray[np.uint8]  # (m,) 1 where crc32c is known
    one_file_each: bool  # the extents are whole files, so keeping them open is no use
    prefixes: list[bytes] | None = None  # (m,) what belongs before the bytes of each; None: nothing
    row_groups: list[RowGroup | None] | None = None  # (m,) what is to be read for each; None: bytes

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: list[int]) -> Extents:
        """Those of some of the samples."""
        return Extents(
            paths=[self.paths[row] for row in rows],
            offset=self.offset[rows],
            nbytes=self.nbytes[rows],
            crc32c=self.crc32c[rows],
            has_crc=self.has_crc[rows],
            one_file_each=self.one_file_each,
            prefixes=None if self.prefixes is None else [self.prefixes[row] for row in rows],
            row_groups=None if self.row_groups is None else [self.row_groups[row] for row in rows],
        )


class SampleIndex:
    """The samples of a dataset, or of a selection of it. Thread-safe; pickles as its arguments.

    `manifest` says which shards there are; they lie in `data_directory`, their sidecars in
    `sidecar_directory` (the same for converted datasets). `chosen`: the ids of a selection, in its
    order; None for all. `remote`: where the shards lie, if that is an object store; both directories are then the one in
    which it keeps copies of sidecars.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        data_directory: Path,
        sidecar_directory: Path,
        chosen: NDArray[np.int64] | None = None,
        remote: ConvertedSet | RemoteShards | None = None,
    ) -> None:
        self.manifest = manifest
        self.data_directory = data_directory
        self.sidecar_directory = sidecar_directory
        self.chosen = chosen
        self.remote = remote
        shards = manifest.shards
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
        self._sidecars = _OpenSidecars(self)
        self._groupings: dict[frozenset[str], RowGrouping | None] = {}

    def __reduce__(self) -> tuple[Callable[..., SampleIndex], tuple[object, ...]]:
        return _restore, (self.manifest, self.data_directory, self.sidecar_directory, self.chosen, self.remote)

    def __len__(self) -> int:
        return self.manifest.num_samples if self.chosen is None else len(self.chosen)

    @property
    def where(self) -> str:
        """What to call the dataset in a message."""
        return str(self.data_directory) if self.remote is None else str(self.remote.location)

    @property
    def is_remote(self) -> bool:
        """Whether the shards lie in an object store."""
        return self.remote is not None

    @property
    def is_foreign(self) -> bool:
        """Whether somebody else wrote the data: our own have their index beside them."""
        return self.sidecar_directory != self.data_directory

    @property
    def has_images(self) -> bool:
        return any(field.name == "image" for field in self.manifest.fields)

    @property
    def fingerprint(self) -> str:
        """A name for these samples in this order, hex: saved states refuse a dataset of another name."""
        if self.chosen is None:
            return self.manifest.fingerprint
        return hashlib.sha256(self.manifest.fingerprint.encode() + self.chosen.astype("<i8").tobytes()).hexdigest()[:16]

    def select(self, positions: NDArray[np.int64]) -> SampleIndex:
        """The samples at these positions, in this order; they keep their ids."""
        return SampleIndex(
            self.manifest,
            data_directory=self.data_directory,
            sidecar_directory=self.sidecar_directory,
            chosen=self.ids(np.asarray(positions, np.int64)),
            remote=self.remote,
        )

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(m,) the sample ids at these positions of the dataset: ascending over all of it."""
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self)):
            raise OptionError(f"positions {positions.min()}..{positions.max()} reach beyond the dataset's {len(self)} samples")
        if self.chosen is not None:
            return self.chosen[positions]
        if not len(self._missing):
            return positions
        return positions + np.searchsorted(self._missing - np.arange(len(self._missing)), positions, side="right")

    def look_up(self, ids: NDArray[np.int64], field: str) -> Entries:
        """The labels and the extents of `field` of these samples."""
        shards, rows = self._locate(ids)
        num = len(ids)
        labels, offset, nbytes = (np.empty(num, np.int64) for _ in range(3))
        crc32c, has_crc = np.empty(num, np.uint32), np.empty(num, np.uint8)
        paths: list[str] = [""] * num
        prefixes: list[bytes] | None = None
        row_groups: list[RowGroup | None] | None = None
        loose = self.manifest.container == "folder"
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
            if prefix := sidecar.prefixes.get(field):
                prefixes = prefixes or [b""] * num
                for member in members.tolist():
                    prefixes[member] = prefix
            if column := sidecar.row_columns.get(field):
                row_groups = row_groups or [None] * num
                self._put_row_groups(row_groups, shard, column, members, offset)
            for member, row in zip(members.tolist(), here.tolist(), strict=True):
                paths[member] = self._loose_path(sidecar, row) if loose else self._shard_paths[shard]
        extents = Extents(paths, offset, nbytes, crc32c, has_crc, one_file_each=loose, prefixes=prefixes, row_groups=row_groups)
        return Entries(ids, labels, extents)

    def row_grouping(self, fields: Collection[str]) -> RowGrouping | None:
        """The row groups that an order had better keep together, where any of these fields is addressed by rows.

        None where all of them are addressed by bytes, which may be read in any order. A shard in which they are is one
        row group among the others.
        """
        wanted = frozenset(fields)
        if wanted not in self._groupings:
            self._groupings[wanted] = self._find_row_grouping(wanted)
        return self._groupings[wanted]

    def shard_starts(self) -> NDArray[np.int64]:
        """(s + 1,) how many samples of the whole dataset are stored before each shard, and in all."""
        return np.cumsum([0, *(shard.num_samples for shard in self.manifest.shards)], dtype=np.int64)

    def positions_as_stored(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """(m,) the positions of the samples that are stored at these places of the whole dataset, counted shard by shard."""
        slots = places
        if len(self._missing):
            skipped = np.concatenate(self._skipped)
            slots = places + np.searchsorted(skipped - np.arange(len(skipped)), places, side="right")
        if self._permutation is None:
            return places
        ids = self._permutation(slots)
        return ids - np.searchsorted(self._missing, ids) if len(self._missing) else ids

    def stored_at(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(m,) the number of the shard that each sample is stored in, and its row there."""
        return self._locate(ids)

    def shard_paths(self, ids: NDArray[np.int64]) -> list[str]:
        """The path or URL of the shard of each of these samples."""
        return [self._shard_paths[shard] for shard in self._locate(ids)[0].tolist()]

    def labels(self) -> NDArray[np.int64]:
        """(n,) the label of every sample, in dataset order; reads every sidecar."""
        self._sidecars.refuse_claims()
        ids = self.ids(np.arange(len(self), dtype=np.int64))
        shards, rows = self._locate(ids)
        labels = np.empty(len(ids), np.int64)
        for shard in np.unique(shards):
            here = shards == shard
            labels[here] = self._sidecars[int(shard)].labels[rows[here]]
        return labels

    def describe(self, id: int) -> Description:
        """What to call one sample in a message."""
        shards, rows = self._locate(np.array([id], np.int64))
        sidecar, row = self._sidecars[int(shards[0])], int(rows[0])
        loose = self.manifest.container == "folder"
        path = self._loose_path(sidecar, row) if loose else self._shard_paths[int(shards[0])]
        return Description(id, path, sidecar.key(row), "" if loose else os.fsdecode(sidecar.source(row)))

    def _put_row_groups(
        self, groups: list[RowGroup | None], shard: int, column: str, members: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> None:
        """Note for each of the members, samples of one shard, what is to be read for it."""
        starts, path = self._sidecars[shard].row_groups, self._shard_paths[shard]
        numbers = np.searchsorted(starts, rows[members], side="right") - 1
        made = {
            number: RowGroup(self.manifest.container, path, column, number, int(starts[number]), int(starts[number + 1]))
            for number in np.unique(numbers).tolist()
        }
        for member, number in zip(members.tolist(), numbers.tolist(), strict=True):
            groups[member] = made[number]

    def _find_row_grouping(self, wanted: frozenset[str]) -> RowGrouping | None:
        if self.manifest.container not in CONTAINERS or any(shard.sha256 for shard in self.manifest.shards):
            return None  # what datapipe wrote lies in pieces of bytes
        self._sidecars.refuse_claims()
        starts: list[NDArray[np.int64]] = []
        nbytes = num_groups = 0
        for shard, first in enumerate(self._first_slot.tolist()):
            sidecar = self._sidecars.opened(shard)  # not kept open, as all of them are asked
            by_rows = wanted & sidecar.row_columns.keys()
            nbytes += sum(int(sidecar.nbytes(name).sum()) for name in by_rows)
            num_groups += len(sidecar.row_groups) - 1 if by_rows else 0
            starts.append(first + (sidecar.row_groups[:-1] if by_rows else np.zeros(1, np.int64)))
        if not num_groups:
            return None
        ids = self.ids(np.arange(len(self), dtype=np.int64))
        groups = np.searchsorted(np.concatenate(starts), ids, side="right")
        begins = np.flatnonzero(np.diff(groups, prepend=-1)) if len(groups) else np.zeros(1, np.int64)
        return RowGrouping(np.append(begins, len(self)), nbytes // num_groups)

    def _locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Shard number and row within it of each id."""
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

    def _loose_path(self, sidecar: Sidecar, row: int) -> str:
        name = os.fsdecode(sidecar.source(row))
        return path_inside(self._top, name, named_in=sidecar.path, follows=True)  # the listing has looked at links


@dataclass(frozen=True, slots=True)
class Entries:
    """What the index knows of some samples."""

    ids: NDArray[np.int64]  # (m,)
    labels: NDArray[np.int64]  # (m,) -1 where a sample has none
    extents: Extents

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Description:
    """One sample, for people."""

    id: int
    path: str  # the file that holds it
    key: bytes
    source: str  # path of the file it was converted from, relative to the source; "" where it was not

    def __str__(self) -> str:
        text = f"{self.path}: sample {self.id}"
        if self.key != os.fsencode(self.path[-len(self.key) :]):  # else a file of its own, whose path says it all
            text += f" ({self.source or os.fsdecode(self.key)})"
        return printable(text)


def _restore(
    manifest: Manifest,
    data_directory: Path,
    sidecar_directory: Path,
    chosen: NDArray[np.int64] | None,
    remote: ConvertedSet | RemoteShards | None = None,
) -> SampleIndex:
    return SampleIndex(manifest, data_directory=data_directory, sidecar_directory=sidecar_directory, chosen=chosen, remote=remote)


class _OpenSidecars:
    """The sidecars of an index by shard number, opened when first asked for; the least recently used are closed."""

    def __init__(self, index: SampleIndex) -> None:
        self._manifest = index.manifest
        self._data, self._directory = str(index.data_directory), str(index.sidecar_directory)
        self._named_in = os.path.join(self._directory, MANIFEST_NAME)
        self._follows = index.is_foreign  # whoever opens shards of others has named them, or their folder
        self._remote = index.remote
        self._fetching = threading.Lock()
        self._open: OrderedDict[int, Sidecar] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, shard: int) -> Sidecar:
        with self._lock:
            sidecar = self._open.get(shard)
            if sidecar is None:
                sidecar = self._open[shard] = self.opened(shard)
                if len(self._open) > MAX_OPEN_SIDECARS:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(shard)
            return sidecar

    def fetch(self, shards: NDArray[np.int64] | None = None) -> None:
        """Have copies of the sidecars of these shards, None for all, where they lie in a store: several at once."""
        if self._remote is not None:
            numbers = range(len(self._manifest.shards)) if shards is None else np.unique(shards).tolist()
            with waiting(), self._fetching:  # what two batches need is fetched once
                self._remote.fetch_sidecars(self._manifest.shards[number] for number in numbers if number not in self._open)

    def opened(self, shard: int) -> Sidecar:
        """One of them, opened for the caller alone, and what it tells checked against the manifest."""
        about = self._manifest.shards[shard]
        if self._remote is not None:
            self._remote.fetch_sidecars([about])
        path_inside(self._data, about.name, named_in=self._named_in, follows=self._follows)
        try:
            return Sidecar(self._path(about), shard=about)
        except (FormatError, MissingDataError):
            if self._remote is None:
                raise
        self._remote.fetch_again(about)  # the copy here was damaged
        return Sidecar(self._path(about), shard=about)

    def refuse_claims(self) -> None:
        """Raise FormatError where a manifest counts samples for which its sidecars, by their sizes, have no room.

        To be asked before memory is taken for as many samples as the manifest says.
        """
        self.fetch()
        for shard, about in enumerate(self._manifest.shards):
            path, num = self._path(about), about.num_samples
            try:
                nbytes = os.stat(path).st_size
            except OSError:
                self.opened(shard)  # says what is wrong with it
                continue
            if num * ROW_NBYTES > nbytes:
                raise FormatError(f"{path}: too small for the {num} samples that the manifest counts; index or convert again")

    def _path(self, about: ShardInfo) -> Path:
        return Path(path_inside(self._directory, about.name + SIDECAR_SUFFIX, named_in=self._named_in))
