"""What writes shards: one module per target format, found by `--to`.

A module offers `open_shard(path, *, fields, classes) -> ShardWriter` and `companions(shard, sidecar) -> dict[str, bytes]`.
Everything else about a conversion (plan, checks, resuming, checksums of fields, the manifest) is the
same for all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from datapipe.containers.field_names import is_field_name
from datapipe.errors import OptionError
from datapipe.manifest import FieldSpec, Kind
from datapipe.probe import ImageHeader
from datapipe.sidecar import Sidecar, SidecarRows

IMAGE_FIELD = FieldSpec("image", Kind.IMAGE)
LABEL_FIELD = FieldSpec("label", Kind.LABEL)
NO_LABEL = -1

# Encodings that are no images', and how a file of theirs is called.
_SUFFIXES = {"text": "txt", "json": "json", "bytes": "bin"}


@dataclass(frozen=True, slots=True)
class StoredField:
    """One field of a sample as it is to be written."""

    encoding: str  # what the bytes are: an image's encoding, "npy", "text" (UTF-8), "json" or "bytes"
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample as it is to be written."""

    id: int
    source: bytes  # path relative to the source's root
    label: int  # NO_LABEL in a set without labels
    size: tuple[int, int]  # (height, width) of the image, pixels; (0, 0) in a set without images
    fields: Mapping[str, StoredField]  # by name: all of the set's but the label


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard whose bytes are on disk."""

    nbytes: int
    sha256: str
    rows: SidecarRows
    companions: dict[str, bytes]  # further files by suffix, such as ".idx"


class ShardWriter(Protocol):
    """One shard in the making. Not thread-safe."""

    def check(self, sample: StoredSample) -> None:
        """Raise DecodeError, with the reason, for a sample that this format cannot hold: a bad sample, then."""

    def append(self, sample: StoredSample) -> None:
        """Add a sample that passes `check` behind the others. Raises OSError as the file system does."""

    def finish(self) -> WrittenShard:
        """Write what is buffered, flush it to disk, close."""

    def abandon(self) -> None:
        """Close without finishing; the file is the caller's to delete."""


@dataclass(frozen=True, slots=True)
class Target:
    """A format that datasets are converted to."""

    module: str
    container: str  # as the manifest names it
    suffix: str  # of a shard's file name
    companion_suffixes: tuple[str, ...] = ()

    def open_shard(self, path: Path, *, fields: Sequence[FieldSpec], classes: Sequence[str] | None = None) -> ShardWriter:
        """Create `path`, which must not exist, and return what fills it with samples of these fields.

        `classes`: names by label, for formats that keep them in the shard. Raises OptionError for fields that could
        not be written.
        """
        open_shard = importlib.import_module(self.module).open_shard
        writer: ShardWriter = open_shard(path, fields=checked_fields(fields), classes=classes)
        return writer

    def companions(self, shard: Path, sidecar: Sidecar) -> dict[str, bytes]:
        """By suffix, the files that belong beside a finished shard. Raises FormatError or OSError for a damaged one."""
        files: dict[str, bytes] = importlib.import_module(self.module).companions(shard, sidecar)
        return files


TARGETS = {
    "webdataset": Target("converters.writers.webdataset", "tar", ".tar", (".idx",)),
    "tfrecord": Target("converters.writers.tfrecord", "tfrecord", ".tfrecord", (".idx",)),
    "hdf5": Target("converters.writers.hdf5", "hdf5", ".h5"),
    "parquet": Target("converters.writers.parquet", "parquet", ".parquet"),
}


def checked_fields(fields: Sequence[FieldSpec]) -> tuple[FieldSpec, ...]:
    """`fields`, which every format must be able to hold.

    A set has fields of different names: lower-case letters, digits and `_`, at most 32 of them. Labels are
    called `label`, and what is called `image` is an image. Names that a format gives to something else
    (`key`, `cls`, the suffixes of images) are refused. Raises OptionError.
    """
    names = [field.name for field in fields]
    for field in fields:
        if not is_field_name(field.name):
            raise OptionError(f"field {field.name!r}: not a name that every format can hold; take another, of a-z, 0-9 and _")
        if (field.name == LABEL_FIELD.name) != (field.kind is Kind.LABEL):
            raise OptionError(f"field {field.name!r} of kind {field.kind.value}: labels, and nothing else, are called 'label'")
        if field.name == IMAGE_FIELD.name and field.kind is not Kind.IMAGE:
            raise OptionError(f"field 'image' of kind {field.kind.value}: what is called 'image' is an image; rename it")
    if not names or len(set(names)) < len(names):
        raise OptionError(f"fields {', '.join(names) or 'none'}: a set has one or more, of different names")
    return tuple(fields)


def sample_key(id: int) -> str:
    """The name of a sample in a shard: digits only, so every reader splits file names at the same dot."""
    return f"{id:09d}"


def suffix_of(encoding: str) -> str:
    """What a file of that encoding is called, without a dot."""
    known = _SUFFIXES.get(encoding)
    return known or ImageHeader(encoding, 1, 1, 3, 8, complete=True).suffix
