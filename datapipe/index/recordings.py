"""The index of sound files: an Arrow file that is mapped, so memory does not grow with the number of files.

One row for each file, or range of a file: `path`, `start` and `nbytes` of the range, `file_nbytes` and `mtime_ns` of the file
when it was read, `num_frames`, `rate` in Hz, `channels`, `has_streams`, `coding`, and `problem`, why it cannot be decoded ("": it
can).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.core import arrow_maps
from datapipe.errors import FormatError
from datapipe.index.arrow_buffers import array_of, strings_of, values_of
from datapipe.index.entries import Extents
from datapipe.index.media import MediaSource, extents_of_sources, read_batches, urls_among

Ints = NDArray[np.int64]

VERSION = "2"
_VERSION_KEY = "datapipe.index.recordings"
_NUMBERS = ("start", "nbytes", "file_nbytes", "mtime_ns", "num_frames", "rate", "channels", "has_streams")
_STRINGS = ("path", "coding", "problem")
_SCHEMA = pa.schema(
    [*(pa.field(name, pa.large_binary()) for name in _STRINGS), *(pa.field(name, pa.int64()) for name in _NUMBERS)],
    metadata={_VERSION_KEY: VERSION},
)


class RecordingEntry(NamedTuple):
    """What is known of a recording."""

    source: MediaSource  # with its number of bytes
    file_nbytes: int
    mtime_ns: int
    num_frames: int = 0
    rate: int = 0
    channels: int = 0
    has_streams: bool = False  # see `AudioFacts`
    coding: str = ""
    problem: str = ""  # why it cannot be decoded


class RecordingIndex:
    """The recordings of an index file, by their numbers. Thread-safe. Raises FormatError for a file that is none, or damaged."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        try:
            (batch,) = read_batches(path, _SCHEMA)
            batch.validate(full=True)
            self._strings = {name: pa.chunked_array([batch.column(name)]) for name in _STRINGS}
            self._numbers = {name: values_of(batch.column(name), np.int64) for name in _NUMBERS}
        except arrow_maps.DAMAGE as exc:
            raise FormatError(f"{path}: no index of recordings, or damaged ({exc}); remove it, and it is made again") from exc

    @classmethod
    def joined(cls, parts: Sequence[RecordingIndex]) -> RecordingIndex:
        """Return the recordings of several indexes, one after the other."""
        index = cls.__new__(cls)
        index.fingerprint = hashlib.sha256(" ".join(part.fingerprint for part in parts).encode()).hexdigest()[:16]
        index._strings = {
            name: pa.chunked_array([chunk for part in parts for chunk in part._strings[name].chunks]) for name in _STRINGS
        }
        index._numbers = {name: np.concatenate([part._numbers[name] for part in parts]) for name in _NUMBERS}
        return index

    def __len__(self) -> int:
        return len(self.num_frames)

    @property
    def num_frames(self) -> Ints:
        """The (n,) frames of each recording; 0 for those that cannot be decoded."""
        return self._numbers["num_frames"]

    @property
    def rates(self) -> Ints:
        """The (n,) rates in Hz; 0 for those that cannot be decoded."""
        return self._numbers["rate"]

    @property
    def channels(self) -> Ints:
        """The (n,) numbers of channels; 0 for those that cannot be decoded."""
        return self._numbers["channels"]

    @property
    def has_streams(self) -> Ints:
        """The (n,) 1 of recordings that are read stream by stream, else 0."""
        return self._numbers["has_streams"]

    @property
    def nbytes(self) -> Ints:
        """The (n,) bytes of the recordings."""
        return self._numbers["nbytes"]

    def urls(self) -> list[str]:
        """Return the URLs of the objects that hold recordings, each once; none if they lie on disks."""
        paths = self._strings["path"]
        if not any(re.search(b"://", chunk.buffers()[2] or b"") for chunk in paths.chunks):
            return []
        return urls_among(map(os.fsdecode, paths.to_pylist()))

    def extents(self, numbers: Sequence[int]) -> Extents:
        """Return where the bytes of recordings lie."""
        return extents_of_sources([self.source(number) for number in numbers])

    def source(self, number: int) -> MediaSource:
        """Return where a recording lies."""
        start, nbytes = (int(self._numbers[name][number]) for name in ("start", "nbytes"))
        return MediaSource(self.path(number), start, nbytes)

    def path(self, number: int) -> str:
        """Return the path of the file of a recording."""
        return os.fsdecode(self._strings["path"][number].as_py())

    def stamp(self, number: int) -> tuple[int, int]:
        """Return the size in bytes and the modification time in ns of the file of a recording when it was read."""
        return int(self._numbers["file_nbytes"][number]), int(self._numbers["mtime_ns"][number])

    def entry(self, number: int) -> RecordingEntry:
        """Return what is known of a recording."""
        numbers = {name: int(column[number]) for name, column in self._numbers.items()}
        path, coding, problem = (self._strings[name][number].as_py() for name in _STRINGS)
        source = MediaSource(os.fsdecode(path), numbers.pop("start"), numbers.pop("nbytes"))
        has_streams = bool(numbers.pop("has_streams"))
        return RecordingEntry(source, **numbers, has_streams=has_streams, coding=coding.decode(), problem=os.fsdecode(problem))


def write_recordings(file: IO[bytes], entries: Iterable[RecordingEntry]) -> None:
    """Write an index of these recordings. `file`: open for writing; the caller closes it."""
    entries = list(entries)
    texts = {
        "path": [os.fsencode(one.source.path) for one in entries],
        "coding": [one.coding.encode() for one in entries],
        "problem": [os.fsencode(one.problem) for one in entries],
    }
    rows = [(one.source.start, one.source.nbytes, *one[1:7]) for one in entries]
    columns = np.array(rows, np.int64).reshape(len(rows), len(_NUMBERS)).T
    arrays = [strings_of(texts[name], pa.large_binary()) for name in _STRINGS] + [array_of(column) for column in columns]
    with pa.ipc.new_stream(file, _SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
