"""The video track of a file by FFmpeg's demultiplexers, for all that is not such an mp4: Matroska, WebM, AVI, FLV, other codecs.

FFmpeg says what the packets are; where they lie is looked up in the file, as decoding reads them from there.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.track import ReadAt, VideoCoding, VideoPackets, VideoTrack
from datapipe.containers.videos.presentation import track_of
from datapipe.errors import FormatError

_HEADER_NBYTES = 64  # at most, between the place of a packet as FFmpeg has it and its data
_SIGNATURES = (  # bytes, their place in the file, FFmpeg's name of the format
    (b"\x1aE\xdf\xa3", 0, "matroska"),
    (b"AVI ", 8, "avi"),
    (b"FLV\x01", 0, "flv"),
    (b"0&\xb2u\x8ef\xcf\x11", 0, "asf"),
    (b"OggS", 0, "ogg"),
    (b"\0\0\1\xba", 0, "mpeg"),
    (b"G", 188, "mpegts"),
)
_REMUX = "remux it: ffmpeg -i IN -c copy OUT.mp4"


def format_of(beginning: bytes) -> str | None:
    """Return FFmpeg's name of the format of a file from its first 189 bytes; None for one that is not read."""
    return next((name for magic, place, name in _SIGNATURES if beginning[place : place + len(magic)] == magic), None)


@contextlib.contextmanager
def open_stream(read: ReadAt, nbytes: int, where: str, *, form: str) -> Iterator[tuple[Any, Any]]:
    """Open a file of `nbytes` bytes; yield PyAV's container and its only stream of video.

    `form`: FFmpeg's name of its format; no other is tried, as playlists lead to other files. Raises FormatError, which names
    `where`, for a file without a video, with several, or that FFmpeg does not read, also while the block runs.
    """
    av = import_av()
    try:
        with av.open(_File(read, nbytes), "r", format=form, metadata_errors="replace") as container:
            cover = av.stream.Disposition.attached_pic
            streams = [one for one in container.streams.video if not one.disposition & cover]
            if len(streams) != 1:
                remedy = "keep one: ffmpeg -i IN -map 0:v:0 -c copy OUT" if streams else "remove it from the data"
                raise FormatError(f"{where}: has {len(streams)} video tracks, expected 1; {remedy}")
            yield container, streams[0]
    except av.error.FFmpegError as exc:
        raise FormatError(f"{where}: FFmpeg does not read it as {form} ({exc.strerror}); get the file again") from exc


def read_demuxed(read: ReadAt, nbytes: int, where: str, *, form: str) -> VideoTrack:
    """Return the video track of a file of `nbytes` bytes.

    `form`: as of `open_stream`. Raises FormatError, which names `where`, for a file without a video, with several, that FFmpeg
    does not read, or whose packets do not lie in it as they are.
    """
    with open_stream(read, nbytes, where, form=form) as (container, stream):
        return _track(container, stream, read, where)


def _track(container: Any, stream: Any, read: ReadAt, where: str) -> VideoTrack:
    context = stream.codec_context
    if context is None or context.codec is None:
        raise FormatError(f"{where}: FFmpeg has no decoder for its video; encode it again")
    codec = "av1" if context.name.startswith("libdav1d") else context.name
    rows: list[tuple[int, int, int, int, bool]] = []
    is_shown: list[bool] = []
    for packet in container.demux(stream):
        if not packet.size:
            continue
        if packet.pts is None:
            raise FormatError(f"{where}: packet {len(rows)} has no time at which it is shown; {_REMUX}")
        place = -1 if packet.pos is None else packet.pos
        found = read(place, packet.size + _HEADER_NBYTES).find(bytes(packet)) if place >= 0 else -1
        if found < 0:
            raise FormatError(f"{where}: packet {len(rows)} does not lie in the file in one piece; {_REMUX}")
        dts = packet.pts if packet.dts is None else packet.dts
        rows.append((packet.pts, dts, place + found, packet.size, packet.is_keyframe))
        is_shown.append(not packet.is_discard)
    if not rows:
        raise FormatError(f"{where}: its video track has no packets; get the file again")
    pts, dts, offset, size, is_key = (np.array(one, np.int64) for one in zip(*rows, strict=True))
    packets = VideoPackets(pts, dts, offset, size, is_key.astype(np.bool_))
    time_base = (stream.time_base.numerator, stream.time_base.denominator)
    rotation = _rotation(container, stream)
    coding = VideoCoding(codec, context.extradata or b"", context.width, context.height, context.pix_fmt or "", rotation)
    return track_of(coding, time_base, packets, read, is_shown=np.array(is_shown))


def _rotation(container: Any, stream: Any) -> int:
    """Return the degrees clockwise by which a player turns the frames, which only a decoded frame says."""
    av = import_av()
    stream.codec_context.thread_count = 1
    try:
        container.seek(0)
        frame = next(iter(container.decode(stream)), None)
    except av.error.FFmpegError:
        return 0
    return 0 if frame is None else round(-frame.rotation / 90) % 4 * 90


class _File(io.RawIOBase):
    """A range of bytes as the file that PyAV reads."""

    def __init__(self, read: ReadAt, nbytes: int) -> None:
        self._read, self._nbytes, self._place = read, nbytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = max(0, offset + (0, self._place, self._nbytes)[whence])
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._nbytes - self._place)
        data = self._read(self._place, left if size < 0 else min(size, left))
        self._place += len(data)
        return data
