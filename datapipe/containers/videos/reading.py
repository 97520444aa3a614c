"""The track of a video file, whatever its container."""

from __future__ import annotations

from datapipe.codecs.video.track import ReadAt, VideoTrack
from datapipe.containers.videos.demux import format_of, read_demuxed
from datapipe.containers.videos.mp4 import has_boxes, read_mp4
from datapipe.errors import FormatError

_BEGINNING_NBYTES = 189


def read_track(read: ReadAt, nbytes: int, where: str) -> VideoTrack:
    """Return the video track of a file, or of a range of one, of `nbytes` bytes, which `read` gives.

    mp4 and mov are read from their boxes, all else with PyAV. Raises FormatError, which names `where`, for what is no video, is
    damaged or cut, or has no video track or several; DependencyError if PyAV is needed and missing.
    """
    try:
        track = _track(read, nbytes, where)
    except FormatError as exc:
        if str(exc).startswith(where):
            raise
        raise FormatError(f"{where}: {exc}") from exc
    if not len(track):
        raise FormatError(f"{where}: no frame of it is shown ({len(track.packets)} packets); remove it from the data")
    return track


def _track(read: ReadAt, nbytes: int, where: str) -> VideoTrack:
    beginning = read(0, min(_BEGINNING_NBYTES, nbytes))
    if has_boxes(beginning):
        track = read_mp4(read, nbytes, where)
        return read_demuxed(read, nbytes, where, form="mov") if track is None else track
    form = format_of(beginning)
    if form is None:
        raise FormatError(f"{where}: no video file ({nbytes} bytes that begin with {beginning[:8]!r}); remove it from the data")
    return read_demuxed(read, nbytes, where, form=form)
