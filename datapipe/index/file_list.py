"""Image files that somebody lists, as an index: paths and labels in memory, in the order given."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.core.errors import OptionError
from datapipe.index.manifest import Manifest, ShardInfo
from datapipe.index.row_groups import RowGrouping
from datapipe.index.sample_index import WHOLE_FILE, Description, Entries, Extents

Ints = NDArray[np.int64]


class FileListIndex:
    """What a `SampleIndex` is, over a list of files; ids are places in it. Thread-safe; pickles as its arguments.

    `paths`: of the images. `labels`: (n,), None where there are none. `where`: what to call them in messages. `chosen`: ids
    of a selection, in its order. Files are looked at when they are read; what is no image, or is gone, is told then.
    """

    is_foreign = True
    is_remote = False

    def __init__(
        self,
        paths: Sequence[str],
        labels: Ints | None,
        *,
        where: str,
        classes: tuple[str, ...] | None = None,
        class_to_idx: dict[str, int] | None = None,
        chosen: Ints | None = None,
    ) -> None:
        self._paths = paths
        self._labels = labels
        self.where = where
        self.chosen = chosen
        fields = (FieldSpec("image", FieldKind.IMAGE), FieldSpec("label", FieldKind.LABEL))
        self.manifest = Manifest(
            container="folder",
            fields=fields if labels is not None else fields[:1],
            shards=(ShardInfo(name="", num_samples=len(paths), nbytes=0, first_slot=0, num_slots=len(paths)),),
            classes=classes,
            class_to_idx=class_to_idx,
        )
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Callable[..., FileListIndex], tuple[object, ...]]:
        return _restore, (self._paths, self._labels, self.where, self.manifest.classes, self.manifest.class_to_idx, self.chosen)

    def __len__(self) -> int:
        return len(self._paths) if self.chosen is None else len(self.chosen)

    @property
    def fingerprint(self) -> str:
        """A name for these files with these labels in this order: of their names, not of their contents."""
        if self._fingerprint is None:
            digest = hashlib.sha256("\0".join(self._paths).encode(errors="surrogateescape"))
            for numbers in (self._labels, self.chosen):
                digest.update(b"-" if numbers is None else numbers.astype("<i8").tobytes())
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    def select(self, positions: Ints) -> FileListIndex:
        """The files at these positions, in this order; they keep their ids."""
        return _restore(
            self._paths,
            self._labels,
            self.where,
            self.manifest.classes,
            self.manifest.class_to_idx,
            self.ids(np.asarray(positions, np.int64)),
        )

    def ids(self, positions: Ints) -> Ints:
        """(m,) the sample ids at these positions."""
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self)):
            raise OptionError(f"positions {positions.min()}..{positions.max()} reach beyond the dataset's {len(self)} samples")
        return positions if self.chosen is None else self.chosen[positions]

    def look_up(self, ids: Ints, field: str) -> Entries:
        """The labels and the extents of these files, each read whole."""
        none = np.zeros(len(ids), np.int64)
        whole = np.full(len(ids), WHOLE_FILE, np.int64)
        extents = Extents(
            paths=[self._paths[place] for place in ids.tolist()],
            offset=none,
            nbytes=whole,
            crc32c=none.astype(np.uint32),
            has_crc=none.astype(np.uint8),
            one_file_each=True,
        )
        return Entries(ids, np.full(len(ids), -1) if self._labels is None else self._labels[ids], extents)

    def row_grouping(self, fields: Collection[str]) -> RowGrouping | None:
        """None: files may be read in any order."""
        return None

    def shard_paths(self, ids: Ints) -> list[str]:
        """The file that each of these samples is."""
        return [self._paths[place] for place in ids.tolist()]

    def labels(self) -> Ints:
        """(n,) the label of every sample, in order; -1 where there are none."""
        ids = self.ids(np.arange(len(self), dtype=np.int64))
        return np.full(len(ids), -1, np.int64) if self._labels is None else self._labels[ids]

    def describe(self, id: int) -> Description:
        """What to call one sample in a message."""
        return Description(id, self._paths[id], os.fsencode(self._paths[id]), "")


def _restore(
    paths: Sequence[str],
    labels: Ints | None,
    where: str,
    classes: tuple[str, ...] | None,
    class_to_idx: dict[str, int] | None,
    chosen: Ints | None,
) -> FileListIndex:
    return FileListIndex(paths, labels, where=where, classes=classes, class_to_idx=class_to_idx, chosen=chosen)
