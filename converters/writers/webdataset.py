"""WebDataset shards: one file per field of each sample, plain USTAR headers, and DALI's index.

The image is `KEY.jpg` (or its own suffix), sound `KEY.flac` (likewise), the label `KEY.cls`, and a further field NAME is
`KEY.NAME.EXT`. webdataset takes everything after the first dot as the field's name and decodes by the part after the last
dot, so `000000007.mask.png` becomes the field `mask.png`, an image, and `000000007.caption.txt` a text. A field named like its
suffix (`txt`, `json`) is not named twice. Bytes have only their name (`000000007.mp4`), unless it would mean something else
(`000000007.json.bin`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from crc32c import crc32c

from converters.writers import ShardStream, StoredField, StoredSample, WrittenShard, add_sample, sample_key, suffix_of
from datapipe.codecs.field_values import IMAGE_FIELD, LABEL_FIELD, FieldSpec
from datapipe.containers.field_names import AUDIO_FIELD
from datapipe.containers.tar import layout as tar_format
from datapipe.containers.tar.layout import (
    BLOCK_NBYTES,
    DALI_INDEX_SUFFIX,
    END_OF_ARCHIVE,
    LABEL_SUFFIX,
    IndexedMember,
    dali_index,
    member_header,
    padding,
    suffix_of_bytes,
)
from datapipe.errors import DecodeError
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sidecar import FieldExtent, SidecarRows

_LABEL_ENCODING = "text"  # decimal ASCII


def companions(shard: Path, sidecar: Sidecar) -> dict[str, bytes]:
    """Return DALI's index of the shard; see `converters.writers.Target.companions`."""
    return {DALI_INDEX_SUFFIX: dali_index(_members(sidecar), sidecar.num_samples)}


class Writer:
    """A tar being written; see `converters.writers.ShardWriter`."""

    def __init__(self, path: Path, *, fields: tuple[FieldSpec, ...], classes: Sequence[str] | None) -> None:
        self._stream = ShardStream(path)
        self._names = tuple(field.name for field in fields)
        self._rows = SidecarRows(self._names)
        self._members: list[list[IndexedMember]] = []

    def check(self, sample: StoredSample) -> None:
        for name, field in sample.fields.items():
            if len(field.data) > tar_format.MAX_MEMBER_NBYTES:
                raise DecodeError(
                    f"field {name!r} of {len(field.data)} bytes exceeds the {tar_format.MAX_MEMBER_NBYTES} of a tar"
                )

    def append(self, sample: StoredSample) -> None:
        key = sample_key(sample.id)
        extents: dict[str, FieldExtent] = {}
        members: list[IndexedMember] = []
        parts: list[bytes] = []
        offset = self._stream.position
        for name in self._names:
            field = sample.fields[name] if name != LABEL_FIELD.name else StoredField(_LABEL_ENCODING, b"%d" % sample.label)
            data, nbytes = field.data, len(field.data)
            suffix = _suffix(name, field.encoding)
            offset += BLOCK_NBYTES
            member = IndexedMember(suffix, offset, nbytes, f"{key}.{suffix}")
            parts += (member_header(member.name.encode(), nbytes), data, padding(nbytes))
            members.append(member)
            extents[name] = FieldExtent(field.encoding, offset, nbytes, crc32c(data))
            offset += nbytes + len(parts[-1])
        self._stream.put(*parts)
        add_sample(self._rows, sample, extents)
        self._members.append(members)

    def finish(self) -> WrittenShard:
        self._stream.put(END_OF_ARCHIVE)
        self._stream.finish()
        index = dali_index(self._members, len(self._members))
        return WrittenShard(self._stream.position, self._stream.sha256.hexdigest(), self._rows, {DALI_INDEX_SUFFIX: index})

    def abandon(self) -> None:
        self._stream.abandon()


@functools.lru_cache(maxsize=256)  # a set has few fields, and these few encodings
def _suffix(name: str, encoding: str) -> str:
    """Return the part after the key's dot in the name of a member."""
    if name == LABEL_FIELD.name:
        return LABEL_SUFFIX
    if encoding == "bytes":
        return suffix_of_bytes(name)
    extension = suffix_of(encoding)
    return extension if name in (IMAGE_FIELD.name, AUDIO_FIELD.name, extension) else f"{name}.{extension}"


def _members(sidecar: Sidecar) -> Iterator[list[IndexedMember]]:
    columns = [(name, sidecar.offsets(name).tolist(), sidecar.nbytes(name).tolist()) for name in sidecar.field_names]
    for row in range(sidecar.num_samples):
        key = sidecar.key(row).decode()
        members = []
        for name, offsets, sizes in columns:
            suffix = _suffix(name, sidecar.encoding(name, row))
            members.append(IndexedMember(suffix, offsets[row], sizes[row], f"{key}.{suffix}"))
        yield members
