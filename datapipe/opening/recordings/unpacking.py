"""Keep recordings that lie compressed in row groups unpacked, in the user's cache, so that each can be read at random."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from datapipe.containers.foreign import cached_home, index_stamp, progress, stamp_of, write_stamp
from datapipe.core import atomic
from datapipe.core.printable import size_text
from datapipe.core.regular_files import read_bytes
from datapipe.core.user_cache import UNPACKED, index_directory, one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import StorageError
from datapipe.fetch.files import Files
from datapipe.index.entries import Extents
from datapipe.index.recordings import RecordingSource

_SIZES = "sizes.npy"
_VALUES_AT_ONCE = 64


def unpacked(extents: Extents, rows: Sequence[int], files: Files, column: str) -> list[RecordingSource]:
    """Return where the recordings of one shard lie, unpacked: now, or in an earlier run for as long as the shard is the same.

    `rows`: those of the extents that lie in the shard. `column`: the field's name. A value that cannot be read becomes an empty
    recording. Raises StorageError if there is no room for them.
    """
    path, first = extents.paths[rows[0]], int(extents.offset[rows[0]])
    home = index_directory(UNPACKED, cached_home("recordings", path, column, str(first)).name)
    data = home / os.path.basename(path)
    stamp = {"shard": [*stamp_of(path)], "rows": len(rows)}
    with one_at_a_time(home / ".lock"):
        sizes = _kept(home, data) if index_stamp(home).items() >= stamp.items() else None
        if sizes is None:
            reason = f"compressed sound is unpacked once, into {home}, for as long as the shard does not change"
            with reported_wait(f"the sound of {path}", reason):
                sizes = _write(data, extents, rows, files)
            with atomic.atomic_writer(home / _SIZES, mode=0o600) as file:
                np.save(file, sizes)
            write_stamp(home, stamp)
    ends = np.cumsum(sizes)
    return [RecordingSource(str(data), *place) for place in zip((ends - sizes).tolist(), sizes.tolist(), strict=True)]


def _kept(home: Path, data: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Return the sizes of what is unpacked; None if it is not there, or not whole."""
    with contextlib.suppress(OSError, ValueError):
        sizes: np.ndarray[tuple[int], np.dtype[np.int64]] = np.load(io.BytesIO(read_bytes(home / _SIZES)), allow_pickle=False)
        if sizes.ndim == 1 and sizes.dtype == np.int64 and int(sizes.sum()) == data.stat().st_size:
            return sizes
    return None


def _write(data: Path, extents: Extents, rows: Sequence[int], files: Files) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Write the values one after the other; return the (n,) bytes of each."""
    path, needed = extents.paths[rows[0]], int(extents.nbytes[rows].sum())
    free = shutil.disk_usage(data.parent).free
    if needed > free:
        raise StorageError(
            f"{path}: its sound is compressed, and is unpacked into {data.parent}, which needs about {size_text(needed)} and has"
            f" {size_text(free)}; set XDG_CACHE_HOME, or convert it (datapipe convert) to webdataset"
        )
    with atomic.atomic_writer(data, mode=0o600) as file:
        values = progress(_values(extents, rows, files), path, total=len(rows), unit="recording")
        sizes = [file.write(value) for value in values]
    return np.array(sizes, np.int64)


def _values(extents: Extents, rows: Sequence[int], files: Files) -> Iterator[bytes]:
    for first in range(0, len(rows), _VALUES_AT_ONCE):
        for value in files.read_each(extents, rows[first : first + _VALUES_AT_ONCE]):
            yield b"" if isinstance(value, Exception) else value
