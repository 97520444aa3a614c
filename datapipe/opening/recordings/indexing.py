"""Make and keep the index of sound files, in the user's cache: of files that have changed only, as sizes and times show."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from datapipe.codecs.audio.decoding import checked_facts
from datapipe.codecs.audio.library import import_soundfile
from datapipe.containers.foreign import UNREAD, cached_home, index_stamp, object_stamp, progress, stamp_of, write_stamp
from datapipe.core import atomic
from datapipe.core.regular_files import open_descriptor, range_in_memory
from datapipe.core.user_cache import INDEXES, index_directory, one_at_a_time
from datapipe.core.waiting import reported_wait
from datapipe.errors import DecodeError, FormatError, MissingDataError, StorageError
from datapipe.index.recordings import VERSION, RecordingEntry, RecordingIndex, RecordingSource, write_recordings
from datapipe.opening.looking import look_at_each
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes, RemoteFile, pin_each

_NAME = "recordings.arrow"


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
        pin_each(source.path for source in sources if is_url(source.path))  # each is to be the same object from now on
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
    stamp = stamp_of(path)
    return stamp != UNREAD and kept.stamp(number) == stamp


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
    """Yield the entries of all recordings in order."""

    def entry(number: int) -> RecordingEntry:
        if kept is not None and _is_current(kept, number, sources[number].path):
            return kept.entry(number)
        return look_at(sources[number])

    return look_at_each(entry, len(sources), is_remote=any(is_url(one.path) for one in sources))


def look_at(source: RecordingSource) -> RecordingEntry:
    """Return what is known of a recording after a look at it. What cannot be decoded has the reason in `problem`.

    Raises StorageError for a store that fails.
    """
    where = source.path if source.nbytes < 0 else f"{source.path}, byte {source.start}"
    try:
        with _opened(source) as (stamp, nbytes, file):
            found = RecordingSource(source.path, source.start, nbytes)
            try:
                facts = checked_facts(file, nbytes)
                return RecordingEntry(found, *stamp, facts.num_frames, facts.rate, facts.channels, facts.coding)
            except DecodeError as exc:
                return RecordingEntry(found, *stamp, problem=f"{where}: {exc}; remove it from the data")
    except (FormatError, MissingDataError) as exc:
        return RecordingEntry(source, *UNREAD, problem=str(exc))
    except StorageError:
        raise
    except OSError as exc:
        return RecordingEntry(source, *UNREAD, problem=f"{where}: cannot be read ({exc.strerror or exc}); restore it")


@contextlib.contextmanager
def _opened(source: RecordingSource) -> Iterator[tuple[tuple[int, int], int, int | BinaryIO]]:
    """Yield the stamp of the file or object that holds a recording, the bytes of the recording, and what reads them."""
    if is_url(source.path):
        data = RemoteBytes(source.path)
        nbytes = len(data) if source.nbytes < 0 else source.nbytes
        file = RemoteFile(data, source.start, source.start + nbytes)
        try:
            yield object_stamp(data.object), nbytes, cast(BinaryIO, file)
        finally:  # libsndfile takes what a store refuses for the end of the file
            file.raise_failure()
        return
    descriptor, status = open_descriptor(source.path)
    stamp = status.st_size, status.st_mtime_ns
    try:
        if source.nbytes < 0:
            yield stamp, status.st_size, descriptor
            return
        part = range_in_memory(descriptor, source.start, source.nbytes)
        try:
            yield stamp, source.nbytes, part
        finally:
            os.close(part)
    finally:
        os.close(descriptor)
