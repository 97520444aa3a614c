"""What writes shards: one module per target format, found by `--to`.

A module offers `open_shard(path) -> ShardWriter`. Everything else about a conversion (plan, checks,
resuming, checksums of fields, the manifest) is the same for all of them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from datapipe.manifest import FieldSpec, Kind
from datapipe.probe import ImageHeader
from datapipe.sidecar import SidecarRows

IMAGE_FIELD = FieldSpec("image", Kind.IMAGE)
LABEL_FIELD = FieldSpec("label", Kind.LABEL)
LABEL_ENCODING = "text"  # decimal ASCII


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A sample as it is to be written."""

    id: int
    source: bytes  # path relative to the source's root
    label: int
    image: bytes
    header: ImageHeader  # of `image`


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard whose bytes are on disk."""

    nbytes: int
    sha256: str
    rows: SidecarRows
    companions: dict[str, bytes]  # further files by suffix, such as ".idx"


class ShardWriter(Protocol):
    """One shard in the making. Not thread-safe."""

    def append(self, sample: StoredSample) -> None:
        """Add a sample behind the others. Raises OSError as the file system does."""

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

    def open_shard(self, path: Path) -> ShardWriter:
        """Create `path`, which must not exist, and return what fills it."""
        writer: ShardWriter = importlib.import_module(self.module).open_shard(path)
        return writer


TARGETS = {"webdataset": Target("converters.writers.webdataset", "tar", ".tar", (".idx",))}
