"""Shards of token ids: one document after the other, little-endian, without headers. Their index says where each ends."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from converters.writers import ShardStream, StoredSample, WrittenShard, sample_key
from datapipe.codecs.field_values import FieldKind, FieldSpec
from datapipe.errors import OptionError
from datapipe.index.sidecar import FieldExtent, SidecarRows


def open_shard(path: Path, *, fields: tuple[FieldSpec, ...], classes: Sequence[str] | None) -> TokenShardWriter:
    """Create the shard at `path`, which must not exist."""
    return TokenShardWriter(path, fields)


class TokenShardWriter:
    """A file of token ids being written; see `converters.writers.ShardWriter`."""

    def __init__(self, path: Path, fields: tuple[FieldSpec, ...]) -> None:
        others = [field.name for field in fields if field.kind is not FieldKind.TOKENS]
        if others:
            raise OptionError(f"--to tokens: {others[0]!r} is no text; leave it out with --field {others[0]}=none")
        self._sha256 = hashlib.sha256()
        self._stream = ShardStream(path, on_write=self._sha256.update)
        self._names = tuple(field.name for field in fields)
        self._rows = SidecarRows(self._names)

    def check(self, sample: StoredSample) -> None:
        """Accept any sample."""

    def append(self, sample: StoredSample) -> None:
        extents: dict[str, FieldExtent] = {}
        for name in self._names:
            field = sample.fields[name]
            extents[name] = FieldExtent(
                field.encoding, self._stream.position, len(field.data), crc32c(field.data), runs=field.runs
            )
            self._stream.put(field.data)
        self._rows.append(
            id=sample.id,
            key=sample_key(sample.id).encode(),
            source=sample.source,
            label=sample.label,
            size=sample.size,
            extents=extents,
        )

    def finish(self) -> WrittenShard:
        self._stream.finish()
        return WrittenShard(self._stream.position, self._sha256.hexdigest(), self._rows, {})

    def abandon(self) -> None:
        self._stream.abandon()
