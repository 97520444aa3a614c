"""WebDataset shards: `KEY.jpg` and `KEY.cls` for each sample, plain USTAR headers, DALI's index beside."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from crc32c import crc32c

from converters.writers import IMAGE_FIELD, LABEL_ENCODING, LABEL_FIELD, StoredSample, WrittenShard
from datapipe.containers.tar_format import (
    BLOCK_NBYTES,
    DALI_INDEX_SUFFIX,
    END_OF_ARCHIVE,
    LABEL_SUFFIX,
    Member,
    dali_index,
    member_header,
    padding,
)
from datapipe.sidecar import FieldExtent, SidecarRows

_WRITE_NBYTES = 4 << 20  # gathered before they are hashed and written


def sample_key(id: int) -> str:
    """The key of a sample in the tar: digits only, so every reader splits the name at the same dot."""
    return f"{id:09d}"


def open_shard(path: Path) -> TarShard:
    """Create the tar at `path`, which must not exist."""
    return TarShard(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


class TarShard:
    """A tar being written; see `converters.writers.ShardWriter`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._sha256 = hashlib.sha256()
        self._rows = SidecarRows((IMAGE_FIELD.name, LABEL_FIELD.name))
        self._members: list[tuple[Member, Member]] = []
        self._parts: list[bytes] = []
        self._buffered = 0
        self._position = 0  # where the next header goes, bytes from the start

    def append(self, sample: StoredSample) -> None:
        key = sample_key(sample.id)
        image, label = sample.image, b"%d" % sample.label
        suffix = sample.header.suffix
        image_name, label_name = f"{key}.{suffix}", f"{key}.{LABEL_SUFFIX}"
        image_at = self._position + BLOCK_NBYTES
        gap = padding(len(image))
        label_at = image_at + len(image) + len(gap) + BLOCK_NBYTES
        label_block = label.ljust(BLOCK_NBYTES, b"\0")
        self._put(member_header(image_name.encode(), len(image)), image, gap)
        self._put(member_header(label_name.encode(), len(label)), label_block)
        self._rows.append(
            id=sample.id,
            key=key.encode(),
            source=sample.source,
            label=sample.label,
            size=(sample.header.height, sample.header.width),
            extents={
                IMAGE_FIELD.name: FieldExtent(sample.header.encoding, image_at, len(image), crc32c(image)),
                LABEL_FIELD.name: FieldExtent(LABEL_ENCODING, label_at, len(label), crc32c(label)),
            },
        )
        self._members.append(
            (Member(suffix, image_at, len(image), image_name), Member(LABEL_SUFFIX, label_at, len(label), label_name))
        )

    def finish(self) -> WrittenShard:
        self._put(END_OF_ARCHIVE)
        self._flush()
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        index = dali_index(self._members, len(self._members))
        return WrittenShard(self._position, self._sha256.hexdigest(), self._rows, {DALI_INDEX_SUFFIX: index})

    def abandon(self) -> None:
        os.close(self._descriptor)

    def _put(self, *parts: bytes) -> None:
        nbytes = sum(map(len, parts))
        self._parts.extend(parts)
        self._position += nbytes
        self._buffered += nbytes
        if self._buffered >= _WRITE_NBYTES:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        self._buffered = 0
        self._sha256.update(data)
        view = memoryview(data)
        while view:  # a full disk takes a part first and fails at the next call
            view = view[os.write(self._descriptor, view) :]
