"""The track of a video file, whatever its container."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from datapipe.codecs.video.track import ReadAt, VideoTrack
from datapipe.codecs.video.transport import BEGINNING_NBYTES
from datapipe.errors import FormatError
from datapipe.opening.videos.demux import format_of, open_stream, read_demuxed
from datapipe.opening.videos.mp4 import has_boxes, read_mp4

_MOV = "mov"  # FFmpeg's name of the format of mp4 and mov files


def read_track(read: ReadAt, nbytes: int, where: str) -> VideoTrack:
    """Return the video track of a file, or of a range of one, of `nbytes` bytes, which `read` gives.

    mp4 and mov are read from their boxes, all else with PyAV. Raises FormatError, which names `where`, for what is no video, is
    damaged or cut, or has no video track; DependencyError if PyAV is needed and missing.
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


@contextlib.contextmanager
def open_template(read: ReadAt, nbytes: int, where: str) -> Iterator[Any]:
    """Yield PyAV's stream of the video of a file: the template of a stream of the same packets. Raises as `read_track`."""
    with open_stream(read, nbytes, where, form=_container_format(read, nbytes, where)) as (_, stream):
        yield stream


def _track(read: ReadAt, nbytes: int, where: str) -> VideoTrack:
    form = _container_format(read, nbytes, where)
    track = read_mp4(read, nbytes, where) if form == _MOV else None
    return read_demuxed(read, nbytes, where, form=form) if track is None else track


def _container_format(read: ReadAt, nbytes: int, where: str) -> str:
    """Return FFmpeg's name of the format of a file."""
    beginning = read(0, min(BEGINNING_NBYTES, nbytes))
    form = _MOV if has_boxes(beginning) else format_of(beginning)
    if form is None:
        raise FormatError(f"{where}: no video file ({nbytes} bytes that begin with {beginning[:8]!r}); remove it from the data")
    return form
