"""The index of sound files, and the look at each for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

from datapipe.codecs.audio.decoding import checked_facts
from datapipe.codecs.audio.library import import_soundfile
from datapipe.containers.foreign import UNREAD, object_stamp
from datapipe.core.regular_files import open_descriptor, range_in_memory
from datapipe.errors import DecodeError, FormatError, MissingDataError, StorageError
from datapipe.index.media import MediaSource
from datapipe.index.recordings import VERSION, RecordingEntry, RecordingIndex, write_recordings
from datapipe.opening.looking import KeptForm, open_kept
from datapipe.stores.location import is_url
from datapipe.stores.random_access import RemoteBytes, RemoteFile


def open_recordings(sources: Sequence[MediaSource], *, where: str) -> RecordingIndex:
    """Return the index of these recordings, in this order; of those that have not changed since the last time it is the kept one.

    What holds no sound stays in the index with the reason. `where`: the path of the data, for messages and to find the kept index
    again. Raises MissingDataError if there are none, StorageError if nothing can be kept, and DependencyError without soundfile.
    """
    if not sources:
        raise MissingDataError(f"{where}: holds no sound files; check the path")
    import_soundfile()
    return open_kept(_FORM, sources, look_at, where=where)


def _identity(entry: RecordingEntry) -> bytes:
    name = os.fsencode(os.path.basename(entry.source.path))
    return b"%b %d %d %d %d" % (name, entry.source.start, entry.source.nbytes, entry.num_frames, entry.rate)


_FORM = KeptForm("recordings", "recording", VERSION, RecordingIndex, write_recordings, _identity)


def look_at(source: MediaSource) -> RecordingEntry:
    """Return what is known of a recording after a look at it. What cannot be decoded has the reason in `problem`.

    Raises StorageError for a store that fails.
    """
    try:
        with _opened(source) as (stamp, nbytes, file):
            found = MediaSource(source.path, source.start, nbytes)
            try:
                facts = checked_facts(file, nbytes)
                return RecordingEntry(found, *stamp, **facts._asdict())
            except DecodeError as exc:
                return RecordingEntry(found, *stamp, problem=f"{exc}; remove it from the data")
    except (FormatError, MissingDataError) as exc:
        return RecordingEntry(source, *UNREAD, problem=str(exc).removeprefix(f"{source.path}: "))
    except StorageError:
        raise
    except OSError as exc:
        return RecordingEntry(source, *UNREAD, problem=f"cannot be read ({exc.strerror or exc}); restore it")


@contextlib.contextmanager
def _opened(source: MediaSource) -> Iterator[tuple[tuple[int, int], int, int | BinaryIO]]:
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
