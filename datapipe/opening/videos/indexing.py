"""Make and keep the index of video files, in the user's cache: of files that have changed only, as sizes and times show."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from datapipe.codecs.video.track import ReadAt
from datapipe.containers.foreign import UNREAD, cached_home, index_stamp, object_stamp, progress, stamp_of, write_stamp
from datapipe.core import atomic
from datapipe.core.regular_files import open_descriptor
from datapipe.core.user_cache import INDEXES, index_directory, one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import FormatError, MissingDataError, StorageError
from datapipe.index.videos import VERSION, VideoEntry, VideoIndex, VideoIndexWriter, VideoSource, refuse_unfit
from datapipe.opening.looking import look_at_each
from datapipe.opening.videos.reading import read_track
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes, pin_each

_NAME = "videos.arrow"
_MAX_ROWS, _MAX_PACKETS = 4096, 1 << 20  # of a batch in the file
_SMALL_NBYTES = 1 << 20
_local = threading.local()  # memory of each thread for small files: new memory for each takes longer than reading it


def open_videos(sources: Sequence[VideoSource], *, where: str) -> VideoIndex:
    """Return the index of these videos, in this order; of those that have not changed since the last time it is the kept one.

    What is no video, or damaged, stays in the index with the reason. `where`: the path of the data, for messages and to find the
    kept index again. Raises MissingDataError if there are none, StorageError if nothing can be kept, DependencyError for a
    file that only PyAV reads, if that is missing.
    """
    if not sources:
        raise MissingDataError(f"{where}: holds no videos; check the path")
    digest = hashlib.sha256(repr([tuple(source) for source in sources]).encode(errors="surrogateescape")).hexdigest()
    home = index_directory(INDEXES, cached_home("videos", where, digest).name)
    with one_at_a_time(home / ".lock"):
        kept = _kept(home)
        if kept is not None and _is_current(kept):
            return kept
        with reported_wait(f"the index of {where}", "the videos are looked at once, for as long as they do not change"):
            return _made(home, sources, kept, where)


def _kept(home: Path) -> VideoIndex | None:
    stamp = index_stamp(home)
    if stamp.get("videos") != VERSION:
        return None
    try:
        return VideoIndex(home / _NAME, str(stamp.get("fingerprint")))
    except FormatError:
        return None


def _is_current(kept: VideoIndex) -> bool:
    pin_each(kept.urls())
    known: dict[str, tuple[int, int]] = {}  # ranges of one file follow each other
    for number in range(len(kept)):
        path = kept.source(number).path
        if path not in known:
            known = {path: stamp_of(path)}
        if known[path] != kept.stamp(number) or known[path] == UNREAD:
            return False
    return True


def _made(home: Path, sources: Sequence[VideoSource], kept: VideoIndex | None, where: str) -> VideoIndex:
    digest = hashlib.sha256()
    with atomic.atomic_writer(home / _NAME, mode=0o600) as file:
        writer = VideoIndexWriter(file)
        rows: list[VideoEntry] = []
        num_packets = 0
        entries = _entries(sources, kept)
        for entry in progress(entries, where, total=len(sources), unit="video"):
            digest.update(_identity(entry))
            rows.append(entry)
            num_packets += 0 if entry.track is None else len(entry.track.packets)
            if len(rows) == _MAX_ROWS or num_packets >= _MAX_PACKETS:
                writer.write(rows)
                rows, num_packets = [], 0
        writer.write(rows)
        writer.close()
    fingerprint = digest.hexdigest()[:16]
    write_stamp(home, {"videos": VERSION, "fingerprint": fingerprint})
    return VideoIndex(home / _NAME, fingerprint)


def _entries(sources: Sequence[VideoSource], kept: VideoIndex | None) -> Iterator[VideoEntry]:
    """Yield the entries of all videos in order."""
    urls = dict.fromkeys(source.path for source in sources if is_url(source.path))
    pin_each(urls)  # each is to be the same object from now on
    return look_at_each(lambda number: _entry(number, sources[number], kept), len(sources), is_remote=bool(urls))


def _entry(number: int, source: VideoSource, kept: VideoIndex | None) -> VideoEntry:
    if kept is not None and (stamp := stamp_of(source.path)) != UNREAD and kept.stamp(number) == stamp:
        problem = kept.problem(number)
        return VideoEntry(kept.source(number), *stamp, None if problem else kept.track(number), problem)
    return look_at(source)


def look_at(source: VideoSource) -> VideoEntry:
    """Return what is known of a video after a look at it. What cannot be read has the reason in `problem`."""
    where = source.path if source.start == 0 and source.nbytes < 0 else f"{source.path}, byte {source.start}"
    try:
        with _opened(source) as (stamp, nbytes, read):
            found = VideoSource(source.path, source.start, nbytes)
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
def _opened(source: VideoSource) -> Iterator[tuple[tuple[int, int], int, ReadAt]]:
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


def _nbytes(source: VideoSource, file_nbytes: int) -> int:
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
