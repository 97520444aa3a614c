"""The writers of shards: one module per target format, chosen by `--to`.

A module provides a class `Writer(path, *, fields, classes)`, which is a `ShardWriter`, and, if its shards have further files,
`companions(shard, sidecar) -> dict[str, bytes]`.
Everything else about a conversion (plan, checks, resuming, checksums of fields, the manifest) is the same for all formats.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from datapipe.codecs.field_values import FieldSpec
from datapipe.codecs.probe import STORED_SUFFIXES
from datapipe.containers.field_names import checked_fields
from datapipe.containers.forms import AUDIO_SUFFIXES
from datapipe.index.open_sidecars import Sidecar
from datapipe.index.sidecar import FieldExtent, SidecarRows
from datapipe.index.tokens import TOKENS_CONTAINER

# Encodings other than images', and the suffix of their files.
_SUFFIXES = {"text": "txt", "json": "json", "bytes": "bin", "tokens": "bin"}


class StoredField(NamedTuple):  # made by the million, like samples: a dataclass takes three times as long
    """One field of a sample in the form to write."""

    encoding: str  # of the bytes: an image's encoding, "npy", "text" (UTF-8), "json", "tokens", "images", "bytes", or "flac"
    data: bytes
    runs: bytes = b""  # of tokens that carry loss: (k, 2) int32, the first of each and the one after the last
    images: bytes = b""  # of images one after the other: (k, 5) int32, as in sidecars


class StoredSample(NamedTuple):
    """A sample in the form to write."""

    id: int
    source: bytes  # path relative to the source's root
    label: int  # NO_LABEL in a set without labels
    size: tuple[int, int]  # (height, width) of the image, pixels; (0, 0) in a set without images
    fields: Mapping[str, StoredField]  # by name: all of the set's fields except the label


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard whose bytes are on disk."""

    nbytes: int
    sha256: str
    rows: SidecarRows
    companions: dict[str, bytes]  # further files by suffix, such as ".idx"


class ShardWriter(Protocol):
    """A writer of one shard. Not thread-safe."""

    def check(self, sample: StoredSample) -> None:
        """Raise DecodeError, with the reason, for a sample that this format cannot hold, which is then a bad sample."""

    def append(self, sample: StoredSample) -> None:
        """Append a sample that passes `check`. Raises OSError as the file system does."""

    def finish(self) -> WrittenShard:
        """Write what is buffered, flush it to disk, and close."""

    def abandon(self) -> None:
        """Close without finishing; the caller deletes the file."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target format of conversions."""

    module: str
    container: str  # its name in the manifest
    suffix: str  # of a shard's file name
    companion_suffixes: tuple[str, ...] = ()

    def open_shard(self, path: Path, *, fields: Sequence[FieldSpec], classes: Sequence[str] | None = None) -> ShardWriter:
        """Create `path`, which must not exist, and return a writer for samples of these fields.

        `classes`: names by label, for formats that keep them in the shard. Raises OptionError for fields that cannot be written.
        """
        made: ShardWriter = importlib.import_module(self.module).Writer(path, fields=checked_fields(fields), classes=classes)
        return made

    def companions(self, shard: Path, sidecar: Sidecar) -> dict[str, bytes]:
        """Return, by suffix, the additional files of a finished shard. Raises FormatError or OSError for a damaged one."""
        if not self.companion_suffixes:
            return {}
        files: dict[str, bytes] = importlib.import_module(self.module).companions(shard, sidecar)
        return files


TARGETS = {
    "webdataset": Target("converters.writers.webdataset", "tar", ".tar", (".idx",)),
    "tfrecord": Target("converters.writers.tfrecord", "tfrecord", ".tfrecord", (".idx",)),
    "hdf5": Target("converters.writers.hdf5", "hdf5", ".h5"),
    "parquet": Target("converters.writers.parquet", "parquet", ".parquet"),
    "tokens": Target("converters.writers.tokens", TOKENS_CONTAINER, ".tokens"),
}


def sample_key(id: int) -> str:
    """Return the name of a sample in a shard: digits only, so every reader splits file names at the same dot."""
    return f"{id:09d}"


def add_sample(rows: SidecarRows, sample: StoredSample, extents: dict[str, FieldExtent]) -> None:
    """Append a sample to the index of its shard."""
    key = sample_key(sample.id).encode()
    rows.append(id=sample.id, key=key, source=sample.source, label=sample.label, size=sample.size, extents=extents)


def suffix_of(encoding: str) -> str:
    """Return the suffix of a file of that encoding, without a dot."""
    known = encoding if f".{encoding}" in AUDIO_SUFFIXES else _SUFFIXES.get(encoding)
    return known or STORED_SUFFIXES[encoding]


_WRITE_NBYTES = 4 << 20  # buffered before they are written


class ShardStream:
    """An open file that only grows. Not thread-safe; raises OSError as the file system does."""

    def __init__(self, path: Path, *, start: int = 0, hashes: bool = True) -> None:
        """Create `path`, which must not exist; the first byte goes to `start`. `hashes`: `sha256` is that of all bytes put."""
        self.position = start  # where the next byte goes
        self.sha256 = hashlib.sha256()
        self._hashes = hashes
        self._parts: list[bytes] = []
        self._buffered = 0
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.lseek(self.descriptor, start, os.SEEK_SET)

    def put(self, *parts: bytes) -> None:
        """Append bytes."""
        nbytes = sum(map(len, parts))
        self._parts.extend(parts)
        self.position += nbytes
        self._buffered += nbytes
        if self._buffered >= _WRITE_NBYTES:
            self.flush()

    def flush(self) -> None:
        """Pass the buffered bytes to the operating system."""
        data = b"".join(self._parts)
        self._parts.clear()
        self._buffered = 0
        if self._hashes:
            self.sha256.update(data)
        write_all(self.descriptor, data)

    def finish(self) -> None:
        """Flush everything to disk and close."""
        self.flush()
        os.fsync(self.descriptor)
        os.close(self.descriptor)

    def abandon(self) -> None:
        """Close without finishing."""
        os.close(self.descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` at the file's current position."""
    view = memoryview(data)
    while view:  # a full disk accepts a part first and fails at the next call
        view = view[os.write(descriptor, view) :]
