"""The common part of the indexes of videos and of recordings, and what is said of those that are bad."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.core import arrow_maps
from datapipe.core.printable import counted
from datapipe.errors import FormatError
from datapipe.index.entries import Extents
from datapipe.stores.location import is_url


class MediaSource(NamedTuple):
    """A file of video or sound, or a range of a file that is one, such as a member of a tar."""

    path: str
    start: int = 0  # bytes
    nbytes: int = -1  # -1: up to the end of the file


def extents_of_sources(sources: Sequence[MediaSource]) -> Extents:
    """Return where the bytes of files, or of ranges of files, lie."""
    num = len(sources)
    start, nbytes = (np.array([one[place] for one in sources], np.int64) for place in (1, 2))
    paths = [source.path for source in sources]
    return Extents(paths, start, nbytes, np.zeros(num, np.uint32), np.zeros(num, np.uint8), one_file_each=True)


class MediaIndex(Protocol):
    """The facts of some files, by their numbers."""

    def __len__(self) -> int: ...

    def stamp(self, number: int) -> tuple[int, int]:
        """Return the size in bytes and the modification time in ns of the file when it was read."""

    def entry(self, number: int) -> Any:
        """Return what is known of it."""


def refuse_bad(is_bad: NDArray[np.bool_], problem: Callable[[int], str]) -> None:
    """Raise FormatError with the `problem` of the first that is bad, by its number, if one is."""
    numbers = np.flatnonzero(is_bad)
    if len(numbers):
        more = f" (and {counted(len(numbers) - 1, 'other')})" if len(numbers) > 1 else ""
        raise FormatError(f"{problem(int(numbers[0]))}, or pass skip_bad=True{more}")


def left_out_line(is_bad: NDArray[np.bool_], unit: str, problem: Callable[[int], str]) -> str | None:
    """Return how many are bad and so left out, and the `problem` of the first; None if none is. `unit`: what they are."""
    numbers = np.flatnonzero(is_bad)
    return f"{counted(len(numbers), unit)} left out: {problem(int(numbers[0]))}" if len(numbers) else None


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
