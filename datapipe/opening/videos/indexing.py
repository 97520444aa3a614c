"""The index of video files, and the look at each for it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence

from datapipe.codecs.video.track import ReadAt
from datapipe.containers.foreign import UNREAD, object_stamp
from datapipe.core.regular_files import open_descriptor
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.media import MediaSource
from datapipe.index.videos import VERSION, VideoEntry, VideoIndex, refuse_unfit, write_videos
from datapipe.opening.looking import KeptForm, open_kept
from datapipe.opening.videos.reading import read_track
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes

_SMALL_NBYTES = 1 << 20
_local = threading.local()  # memory of each thread for small files: new memory for each takes longer than reading it


def open_videos(sources: Sequence[MediaSource], *, where: str) -> VideoIndex:
    """Return the index of these videos, in this order; of those that have not changed since the last time it is the kept one.

    What is no video, or damaged, stays in the index with the reason. `where`: the path of the data, for messages and to find the
    kept index again. Raises MissingDataError if there are none, StorageError if nothing can be kept, DependencyError for a
    file that only PyAV reads, if that is missing.
    """
    if not sources:
        raise MissingDataError(f"{where}: holds no videos; check the path")
    return open_kept(_FORM, sources, look_at, where=where)


def look_at(source: MediaSource) -> VideoEntry:
    """Return what is known of a video after a look at it. What cannot be read has the reason in `problem`."""
    where = source.path if source.start == 0 and source.nbytes < 0 else f"{source.path}, byte {source.start}"
    try:
        with _opened(source) as (stamp, nbytes, read):
            found = MediaSource(source.path, source.start, nbytes)
            try:
                return VideoEntry(found, *stamp, refuse_unfit(read_track(read, nbytes, where), where))
            except FormatError as exc:
                return VideoEntry(found, *stamp, None, str(exc))
    except StorageError:
        raise  # the store, rather than this video
    except MissingDataError as exc:
        return VideoEntry(source, *UNREAD, None, str(exc))
    except OSError as exc:
        return VideoEntry(source, *UNREAD, None, f"{where}: cannot be read ({exc.strerror or exc}); restore it")


@contextlib.contextmanager
def _opened(source: MediaSource) -> Iterator[tuple[tuple[int, int], int, ReadAt]]:
    """Yield the stamp of a video's file or object, the bytes of the video, and what reads ranges of it."""
    if is_url(source.path):
        data = RemoteBytes(source.path)
        start, nbytes = source.start, _nbytes(source, len(data))
        end = start + nbytes
        yield object_stamp(data.object), nbytes, lambda offset, size: data[start + offset : min(start + offset + size, end)]
        return
    descriptor, status = open_descriptor(source.path)
    try:
        nbytes = _nbytes(source, status.st_size)
        yield (status.st_size, status.st_mtime_ns), nbytes, _reader(descriptor, source.start, nbytes)
    finally:
        os.close(descriptor)


def _nbytes(source: MediaSource, file_nbytes: int) -> int:
    """Return the bytes of a video, of those of its file."""
    whole = max(0, file_nbytes - source.start)
    return whole if source.nbytes < 0 else min(source.nbytes, whole)


def _reader(descriptor: int, start: int, nbytes: int) -> ReadAt:
    """Return what reads a range of a file; a small one is read at once, as each read gives up the interpreter's lock."""
    if nbytes > _SMALL_NBYTES:
        return lambda offset, size: os.pread(descriptor, size, start + offset)
    if not hasattr(_local, "memory"):
        _local.memory = bytearray(_SMALL_NBYTES)
    data = memoryview(_local.memory)[:nbytes]
    data = data[: os.preadv(descriptor, [data], start)] if nbytes else data
    return lambda offset, size: bytes(data[offset : offset + size])


def _identity(entry: VideoEntry) -> bytes:
    """Return what tells a video from another, wherever it lies: its name, its size, and its packets."""
    name = os.fsencode(os.path.basename(entry.source.path))
    track = entry.track
    held = b"" if track is None else track.packets.size.tobytes() + track.frame_packet.tobytes()
    return b"%b %d %d %b" % (name, entry.source.start, entry.source.nbytes, hashlib.sha256(held).digest())


_FORM = KeptForm("videos", "video", VERSION, VideoIndex, write_videos, _identity)
