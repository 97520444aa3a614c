"""The common part of the indexes of videos and of recordings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from datapipe.core import arrow_maps
from datapipe.stores.location import is_url


class MediaSource(NamedTuple):
    """A file of video or sound, or a range of a file that is one, such as a member of a tar."""

    path: str
    start: int = 0  # bytes
    nbytes: int = -1  # -1: up to the end of the file


class MediaIndex(Protocol):
    """The facts of some files, by their numbers."""

    def __len__(self) -> int: ...

    def stamp(self, number: int) -> tuple[int, int]:
        """Return the size in bytes and the modification time in ns of the file when it was read."""

    def entry(self, number: int) -> Any:
        """Return what is known of it."""


def read_batches(path: Path, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Map an index file whose schema has the version that this one has, its only metadata. Raises `arrow_maps.DAMAGE`."""
    data = arrow_maps.stream_of(arrow_maps.map_file(path))
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        batches = list(reader)
    ((key, expected),) = schema.metadata.items()
    version = (reader.schema.metadata or {}).get(key)
    if version != expected:
        raise ValueError(f"its version is {version!r}")
    return batches


def urls_among(paths: Iterable[str]) -> list[str]:
    """Return those of the paths that are URLs, each once."""
    return [path for path in dict.fromkeys(paths) if is_url(path)]
