"""Make and keep the index of sound files, in the user's cache: of files that have changed only, as sizes and times show."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from datapipe.codecs.audio.decoding import AudioFacts, checked_facts
from datapipe.codecs.audio.library import import_soundfile
from datapipe.containers.foreign import cached_home, index_stamp, progress, write_stamp
from datapipe.core import atomic
from datapipe.core.regular_files import open_descriptor, range_in_memory
from datapipe.core.user_cache import INDEXES, index_directory, one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import DecodeError, FormatError, MissingDataError
from datapipe.index.recordings import VERSION, RecordingEntry, RecordingIndex, RecordingSource, write_recordings

_NAME = "recordings.arrow"
_NUM_THREADS = 2
_UNREAD = (-1, 0)  # the stamp of a file that could not be read: it is tried again


def open_recordings(sources: Sequence[RecordingSource], *, where: str) -> RecordingIndex:
    """Return the index of these recordings, in this order; of those that have not changed since the last time it is the kept one.

    What holds no sound stays in the index with the reason. `where`: the path of the data, for messages and to find the kept index
    again. Raises MissingDataError if there are none, StorageError if nothing can be kept, and DependencyError without soundfile.
    """
    if not sources:
        raise MissingDataError(f"{where}: holds no sound files; check the path")
    import_soundfile()
    digest = hashlib.sha256(repr([tuple(source) for source in sources]).encode(errors="surrogateescape")).hexdigest()
    home = index_directory(INDEXES, cached_home("recordings", where, digest).name)
    with one_at_a_time(home / ".lock"):
        kept = _kept(home, len(sources))
        if kept is not None and all(_is_current(kept, number, source.path) for number, source in enumerate(sources)):
            return kept
        with reported_wait(f"the index of {where}", "the files are looked at once, for as long as they do not change"):
            return _made(home, sources, kept, where)


def _kept(home: Path, num: int) -> RecordingIndex | None:
    stamp = index_stamp(home)
    if stamp.get("recordings") != VERSION:
        return None
    try:
        kept = RecordingIndex(home / _NAME, str(stamp.get("fingerprint")))
    except FormatError:
        return None
    return kept if len(kept) == num else None


def _is_current(kept: RecordingIndex, number: int, path: str) -> bool:
    stamp = _stamp(path)
    return stamp != _UNREAD and kept.stamp(number) == stamp


def _made(home: Path, sources: Sequence[RecordingSource], kept: RecordingIndex | None, where: str) -> RecordingIndex:
    entries = list(progress(_entries(sources, kept), where, total=len(sources), unit="recording"))
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(os.fsencode(os.path.basename(entry.source.path)))
        digest.update(b" %d %d %d %d" % (entry.source.start, entry.source.nbytes, entry.num_frames, entry.rate))
    with atomic.atomic_writer(home / _NAME, mode=0o600) as file:
        write_recordings(file, entries)
    fingerprint = digest.hexdigest()[:16]
    write_stamp(home, {"recordings": VERSION, "fingerprint": fingerprint})
    return RecordingIndex(home / _NAME, fingerprint)


def _entries(sources: Sequence[RecordingSource], kept: RecordingIndex | None) -> Iterator[RecordingEntry]:
    """Yield the entries of all recordings in order, made by threads."""

    def entry(number: int) -> RecordingEntry:
        if kept is not None and _is_current(kept, number, sources[number].path):
            return kept.entry(number)
        return look_at(sources[number])

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        yield from pool.map(entry, range(len(sources)))


def look_at(source: RecordingSource) -> RecordingEntry:
    """Return what is known of a recording after a look at it. What cannot be decoded has the reason in `problem`."""
    where = source.path if source.nbytes < 0 else f"{source.path}, byte {source.start}"
    try:
        descriptor, status = open_descriptor(source.path)
    except FormatError as exc:
        return RecordingEntry(source, *_UNREAD, problem=str(exc))
    except OSError as exc:
        return RecordingEntry(source, *_UNREAD, problem=f"{where}: cannot be read ({exc.strerror or exc}); restore it")
    nbytes = status.st_size if source.nbytes < 0 else source.nbytes
    found = RecordingSource(source.path, source.start, nbytes)
    stamp = status.st_size, status.st_mtime_ns
    try:
        facts = _facts(descriptor, source, nbytes)
    except DecodeError as exc:
        return RecordingEntry(found, *stamp, problem=f"{where}: {exc}; remove it from the data")
    finally:
        os.close(descriptor)
    return RecordingEntry(found, *stamp, facts.num_frames, facts.rate, facts.channels, facts.coding)


def _facts(descriptor: int, source: RecordingSource, nbytes: int) -> AudioFacts:
    if source.nbytes < 0:
        return checked_facts(descriptor, nbytes)
    part = range_in_memory(descriptor, source.start, source.nbytes)
    try:
        return checked_facts(part, nbytes)
    finally:
        os.close(part)


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return _UNREAD
    return status.st_size, status.st_mtime_ns
