"""The video track of a file by FFmpeg's demultiplexers, for all that is not such an mp4: Matroska, WebM, AVI, MPEG-TS, others.

FFmpeg says what the packets are; where they lie is looked up in the file, as decoding reads them from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from datapipe.codecs.video.library import import_av
from datapipe.codecs.video.track import ReadAt, VideoCoding, VideoPackets, VideoTrack
from datapipe.codecs.video.transport import BEGINNING_NBYTES, Framing
from datapipe.errors import FormatError
from datapipe.opening.videos.presentation import track_of

_HEADER_NBYTES = 64  # at most, between the place of a packet as FFmpeg has it and its data
_SIGNATURES = (  # bytes, their place in the file, FFmpeg's name of the format
    (b"\x1aE\xdf\xa3", 0, "matroska"),
    (b"AVI ", 8, "avi"),
    (b"FLV\x01", 0, "flv"),
    (b"0&\xb2u\x8ef\xcf\x11", 0, "asf"),
    (b"OggS", 0, "ogg"),
    (b"\0\0\1\xba", 0, "mpeg"),
)
_TRANSPORT = "mpegts"
_ENCODE = "encode it again: ffmpeg -i IN -crf 18 OUT.mp4"  # a copy of the packets would lack times, or have wrong ones


def format_of(beginning: bytes) -> str | None:
    """Return FFmpeg's name of the format of a file from its first bytes; None for one that is not read."""
    if Framing.of(beginning) is not None:
        return _TRANSPORT
    return next((name for magic, place, name in _SIGNATURES if beginning[place : place + len(magic)] == magic), None)


@contextlib.contextmanager
def open_stream(read: ReadAt, nbytes: int, where: str, *, form: str) -> Iterator[tuple[Any, Any]]:
    """Open a file of `nbytes` bytes; yield PyAV's container and the stream of video that a player shows.

    That is the first one that is marked as default, or else the first; covers are no video. `form`: FFmpeg's name of its format;
    no other is tried, as playlists lead to other files. Raises FormatError, which names `where`, for a file without a video, or
    that FFmpeg does not read, also while the block runs.
    """
    av = import_av()
    try:
        with av.open(_File(read, nbytes), "r", format=form, metadata_errors="replace") as container:
            streams = _videos_of(container)
            if not streams:
                raise FormatError(f"{where}: has no video track; remove it from the data")
            default = av.stream.Disposition.default
            yield container, next((one for one in streams if one.disposition & default), streams[0])
    except av.error.FFmpegError as exc:
        raise FormatError(f"{where}: FFmpeg does not read it as {form} ({exc.strerror}); get the file again") from exc


def _videos_of(container: Any) -> list[Any]:
    """Return the streams of video, without covers."""
    cover = import_av().stream.Disposition.attached_pic
    return [one for one in container.streams.video if not one.disposition & cover]


def read_demuxed(read: ReadAt, nbytes: int, where: str, *, form: str) -> VideoTrack:
    """Return the video track of a file of `nbytes` bytes.

    `form`: as of `open_stream`. Raises FormatError, which names `where`, for a file without a video, that FFmpeg does not read,
    or whose packets do not lie in it as they are.
    """
    with open_stream(read, nbytes, where, form=form) as (container, stream):
        framing = Framing.of(read(0, BEGINNING_NBYTES), stream.id) if form == _TRANSPORT else None
        return _track(container, stream, read, nbytes, where, framing)


def _track(container: Any, stream: Any, read: ReadAt, nbytes: int, where: str, framing: Framing | None) -> VideoTrack:
    av, context = import_av(), stream.codec_context
    if context is None or context.codec is None:
        raise FormatError(f"{where}: FFmpeg has no decoder for its video; encode it again")
    codec = "av1" if context.name.startswith("libdav1d") else context.name
    rows: list[tuple[int, int, int, int, bool]] = []
    held: list[bytes] = []  # of a transport stream, to be compared
    is_shown: list[bool] = []
    for packet in _demuxed(container, stream, where):
        if not packet.size:
            continue
        if packet.pts is None:
            raise FormatError(f"{where}: packet {len(rows)} has no time at which it is shown; {_ENCODE}")
        place = -1 if packet.pos is None else packet.pos
        found = 0
        if framing is not None:
            held.append(hashlib.sha256(bytes(packet)).digest())
            place -= place % framing.stride
        elif place >= 0:
            found = read(place, packet.size + _HEADER_NBYTES).find(bytes(packet))
        if found < 0 or place < 0:
            raise FormatError(f"{where}: packet {len(rows)} does not lie in the file in one piece; {_ENCODE}")
        dts = packet.pts if packet.dts is None else packet.dts
        rows.append((packet.pts, dts, place + found, packet.size, packet.is_keyframe))
        is_shown.append(not packet.is_discard)
    if not rows:
        raise FormatError(f"{where}: its video track has no packets; get the file again")
    pts, dts, offset, size, is_key = (np.array(one, np.int64) for one in zip(*rows, strict=True))
    packets = VideoPackets(pts, dts, offset, size, is_key.astype(np.bool_), framing)
    shift = 0
    if framing is not None:
        packets = _framed(packets, held, read, nbytes, where)
        begin = Fraction(container.start_time or 0, av.time_base)  # of any track: players count from there
        shift = -round(begin / stream.time_base)
    time_base = (stream.time_base.numerator, stream.time_base.denominator)
    rotation = _rotation(container, stream)
    coding = VideoCoding(codec, context.extradata or b"", context.width, context.height, context.pix_fmt or "", rotation)
    others = len(_videos_of(container)) - 1
    return track_of(coding, time_base, packets, read, is_shown=np.array(is_shown), shift=shift, num_others=others)


def _demuxed(container: Any, stream: Any, where: str) -> Iterator[Any]:
    """Yield the packets of a stream. Raises FormatError for one of a stream that comes up later, which PyAV does not know."""
    try:
        yield from container.demux(stream)
    except IndexError as exc:
        raise FormatError(
            f"{where}: a stream comes up that its beginning does not name; get the file again, or {_ENCODE}"
        ) from exc


def _framed(packets: VideoPackets, held: list[bytes], read: ReadAt, nbytes: int, where: str) -> VideoPackets:
    """Return packets of a transport stream with the stretches of the file up to the next one.

    `held`: their checksums. Raises FormatError if they lie there otherwise.
    """
    assert packets.framing is not None
    ends = np.append(packets.offset[1:], nbytes)
    for number, (start, end) in enumerate(zip(packets.offset.tolist(), ends.tolist(), strict=True)):
        if end <= start or hashlib.sha256(packets.framing.payload(read(start, end - start))).digest() != held[number]:
            raise FormatError(f"{where}: packet {number} does not lie in packets of its own; {_ENCODE}")
    return dataclasses.replace(packets, size=ends - packets.offset)


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
