"""Shards of token ids: one document after the other, little-endian, without headers. Their index says where each ends.

The images of a document, as they are, follow its ids, and zeros up to a multiple of 4 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from crc32c import crc32c

from converters.writers import ShardStream, StoredField, StoredSample, WrittenShard, add_sample
from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.errors import OptionError
from datapipe.index.sidecar import FieldColumn, SidecarRows

_IMAGES_ALIGNED = 4  # bytes: the ids that follow begin at a multiple of their size


class Writer:
    """A file of token ids being written; see `converters.writers.ShardWriter`."""

    def __init__(self, path: Path, *, fields: tuple[FieldSpec, ...], classes: Sequence[str] | None) -> None:
        others = [field.name for field in fields if field.kind not in (FieldKind.TOKENS, FieldKind.IMAGES)]
        if others:
            raise OptionError(f"--to tokens: {others[0]!r} is no text; leave it out with --field {others[0]}=none")
        self._stream = ShardStream(path)
        self._columns = {field.name: _Column(field.kind.value) for field in fields}
        self._rows = SidecarRows(())

    def check(self, sample: StoredSample) -> None:
        """Accept any sample."""

    def append(self, sample: StoredSample) -> None:
        for name, column in self._columns.items():
            field = sample.fields[name]
            column.add(self._stream.position, field)
            self._stream.put(field.data, bytes(-len(field.data) % _IMAGES_ALIGNED) if field.images else b"")
        add_sample(self._rows, sample, {})

    def finish(self) -> WrittenShard:
        self._stream.finish()
        for name, column in self._columns.items():
            self._rows.add_column(name, column.finished())
        return WrittenShard(self._stream.position, self._stream.sha256.hexdigest(), self._rows, {})

    def abandon(self) -> None:
        self._stream.abandon()


class _Column:
    """The places and checksums of a field's documents, in arrays: there is no object for each of them."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._offset, self._nbytes, self._crc32c = array("q"), array("q"), array("I")
        self._runs: list[bytes] = []
        self._images: list[bytes] = []

    def add(self, offset: int, field: StoredField) -> None:
        self._offset.append(offset)
        self._nbytes.append(len(field.data))
        self._crc32c.append(crc32c(field.data))
        self._runs.append(field.runs)
        self._images.append(field.images)

    def finished(self) -> FieldColumn:
        offset, nbytes = (np.array(one, np.int64) for one in (self._offset, self._nbytes))
        crc32c = np.array(self._crc32c, np.uint32)
        return FieldColumn(offset, nbytes, encoding=self._encoding, crc32c=crc32c, runs=self._runs, images=self._images)
