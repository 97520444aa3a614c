"""Index a list of image files: paths and labels in memory, in the order given."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.field_values import NO_LABEL, FieldKind, FieldSpec
from datapipe.index.entries import WHOLE_FILE, Description, Entries, Extents, RowGrouping, check_positions
from datapipe.index.manifest import Manifest, ShardInfo

Ints = NDArray[np.int64]


class FileListIndex:
    """The interface of `SampleIndex` over a list of files; ids are places in it. Thread-safe; pickles as its arguments.

    `paths`: of the images. `labels`: (n,), None where there are none. `where`: what to call them in messages. Files are
    looked at when they are read: what is no image, or is gone, is reported then.
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
    ) -> None:
        self._paths = paths
        self._labels = labels
        self.where = where
        fields = (FieldSpec("image", FieldKind.IMAGE), FieldSpec("label", FieldKind.LABEL))
        self.manifest = Manifest(
            container="folder",
            is_listing=True,
            fields=fields if labels is not None else fields[:1],
            shards=(ShardInfo(name="", num_samples=len(paths), nbytes=0, first_slot=0, num_slots=len(paths)),),
            classes=classes,
            class_to_idx=class_to_idx,
        )
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Callable[..., FileListIndex], tuple[object, ...]]:
        classes, class_to_idx = self.manifest.classes, self.manifest.class_to_idx
        make = functools.partial(FileListIndex, where=self.where, classes=classes, class_to_idx=class_to_idx)
        return make, (self._paths, self._labels)

    def __len__(self) -> int:
        return len(self._paths)

    former_fingerprint = ""  # of no set that was converted

    @property
    def fingerprint(self) -> str:
        """A hash of these files with these labels in this order: of their names, not of their contents."""
        if self._fingerprint is None:
            digest = hashlib.sha256("\0".join(self._paths).encode(errors="surrogateescape"))
            digest.update(b"-" if self._labels is None else self._labels.astype("<i8").tobytes())
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    def ids(self, positions: Ints) -> Ints:
        """Return (m,) the sample ids at these positions: the same numbers."""
        check_positions(positions, len(self))
        return positions

    def look_up(self, ids: Ints, field: str) -> Entries:
        """Return the labels and the extents of these files, each read whole."""
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
        return Entries(ids, np.full(len(ids), NO_LABEL) if self._labels is None else self._labels[ids], extents)

    def row_grouping(self, fields: Collection[str], ids: Ints | None = None) -> RowGrouping | None:
        """Return None: files may be read in any order."""
        return None

    def shard_paths(self, ids: Ints) -> list[str]:
        return [self._paths[place] for place in ids.tolist()]

    def labels(self, ids: Ints | None = None) -> Ints:
        """Return (n,) the label of every file in order, or of these; NO_LABEL where there are none."""
        if self._labels is None:
            return np.full(len(self) if ids is None else len(ids), NO_LABEL, np.int64)
        return self._labels if ids is None else self._labels[ids]

    def describe(self, id: int) -> Description:
        return Description(id, self._paths[id], os.fsencode(self._paths[id]), "")
