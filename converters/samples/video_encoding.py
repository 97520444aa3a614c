"""Encode videos again, for fast random access: small frames, key frames close together, and what decodes quickly.

H.264 by x264 in one thread, so that the bytes depend on nothing but the frames. There is no CABAC and no deblocking filter
("fastdecode"). Of four frames three are referred to by no other, so that a window of every fourth frame decodes few of them:
random windows take a third less time than without such frames, at the same size.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from converters.samples.examine import VideoTreatment
from converters.samples.muxing import Mp4Writer, Shown
from datapipe.codecs.video.conversion import DEPTH_FORMATS
from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.codecs.video.library import import_av, major_version
from datapipe.codecs.video.track import ReadAt, VideoTrack
from datapipe.errors import DecodeError

KEY_EVERY = 16  # frames from one key frame to the next, unless the user says it
_CRF = 23  # a file of 256 p with a key frame every 16 is about as large as one of 480 p with a key frame every 60
_PIXELS = "yuv420p"
_LIMITED_RANGE = 1  # of FFmpeg's AVColorRange
_X264 = "scenecut=0:bframes=3:b-adapt=0:b-pyramid=none:cpu-independent=1"


def stored_size(height: int, width: int, shorter: int | None) -> tuple[int, int]:
    """Return (height, width) of stored frames: even, of about the same aspect, not larger; `shorter`: of the shorter side."""
    scale = 1.0 if shorter is None else min(1.0, shorter / min(height, width))
    return _even(height * scale, height), _even(width * scale, width)


def _even(wanted: float, most: int) -> int:
    """Return the even number nearest to `wanted`, at least 2, and at most `most` where that is possible."""
    return max(2, min(2 * round(wanted / 2), most - most % 2))


def encoded(
    decoder: VideoDecoder, track: VideoTrack, read: ReadAt, frames: range, treatment: VideoTreatment, *, delay: int, end: int
) -> bytes:
    """Return an mp4 of some frames of a video, encoded again as a player shows them; times are kept.

    `delay`: before the first frame is shown. `end`: the time at which the last frame ends. Both are in units of
    1 / `track.time_base[1]` s. Raises DecodeError for frames that do not decode, and for depth.
    """
    unit, scale = track.time_base
    times = (track.packets.pts[track.frame_packet] * unit).tolist()
    if min(np.diff([*times[frames.start : frames.stop], end])) <= 0:
        raise DecodeError("has frames that are shown at the same time; repair its times, or keep it as it is")
    size = stored_size(*track.coding.shown_size, treatment.size)
    coded_size = size[::-1] if track.coding.rotation in (90, 270) else size
    shaper = _Shaper(coded_size, track.coding.rotation)
    seconds = (end - times[frames.start]) / scale
    last_length = end - times[frames.stop - 1]
    stream: Any = None
    try:
        with Mp4Writer(scale) as writer:
            for number, frame in _in_order(decoder, track, read, frames):
                shaped = shaper.shape(frame)
                if stream is None:
                    stream = _encoder(writer, shaped, scale, len(frames) / seconds, treatment.key_every or KEY_EVERY)
                shaped.pts, shaped.time_base = times[number] - times[frames.start], Fraction(1, scale)
                _put(writer, stream, stream.encode(shaped), last_length)
            _put(writer, stream, stream.encode(None), last_length)
            return writer.finish(Shown(0, end - times[frames.start], delay))
    except import_av().error.FFmpegError as exc:
        raise DecodeError(f"is not encoded again ({exc.strerror}); keep it as it is: leave out --video-size") from exc


def _put(writer: Mp4Writer, stream: Any, packets: list[Any], duration: int) -> None:
    for packet in packets:
        writer.put(stream, bytes(packet), pts=packet.pts, dts=packet.dts, duration=duration, is_key=packet.is_keyframe)


def _encoder(writer: Mp4Writer, first: Any, scale: int, rate: float, key_every: int) -> Any:
    """Return a stream that encodes frames like the first one."""
    parameters = f"keyint={key_every}:min-keyint={key_every}:{_X264}"
    options = {"preset": "medium", "tune": "fastdecode", "crf": str(_CRF), "x264-params": parameters}
    stream = writer.output.add_stream("libx264", rate=Fraction(rate).limit_denominator(1001), options=options)
    context = stream.codec_context
    context.width, context.height, context.pix_fmt = first.width, first.height, _PIXELS
    context.time_base = Fraction(1, scale)
    context.thread_count = 1
    context.color_range, context.colorspace = first.color_range, first.colorspace
    context.color_primaries, context.color_trc = first.color_primaries, first.color_trc
    return stream


def _in_order(decoder: VideoDecoder, track: VideoTrack, read: ReadAt, frames: range) -> Iterator[tuple[int, Any]]:
    """Yield the frames of a video in the order of their numbers, with these. Raises DecodeError for one that does not decode."""
    waiting: dict[int, Any] = {}
    following = frames.start
    for number, frame in decoder.decode(track, read, np.arange(frames.start, frames.stop)):
        if isinstance(frame, DecodeError):
            raise frame
        waiting[number] = frame
        while following in waiting:
            yield following, waiting.pop(following)
            following += 1


class _Shaper:
    """Gives frames their stored size, pixel format and rotation."""

    def __init__(self, size: tuple[int, int], rotation: int) -> None:
        """`size`: (height, width) before the rotation; degrees clockwise."""
        av = import_av()
        self._size, self._rotation = size, rotation
        self._new_frame = av.VideoFrame
        self._reformatter = av.video.reformatter.VideoReformatter()
        how = av.video.reformatter.Interpolation
        self._options = {"interpolation": how.BICUBIC | how.ACCURATE_RND | how.BITEXACT, "dst_color_range": _LIMITED_RANGE}
        if major_version() >= 17:
            self._options["threads"] = 1

    def shape(self, frame: Any) -> Any:
        """Return a new frame. Raises DecodeError for depth."""
        if frame.format.name in DEPTH_FORMATS:
            raise DecodeError(f"its frames are depth ({frame.format.name}), which is kept only as it is; leave out --video-size")
        height, width = self._size
        shaped = self._reformatter.reformat(frame, width=width, height=height, format=_PIXELS, **self._options)
        if self._rotation:
            shaped = self._turned(shaped)
        shaped.pict_type = 0  # the encoder decides which frames are key frames
        return shaped

    def _turned(self, frame: Any) -> Any:
        """Return a copy of a frame that is turned as a player shows it."""
        height, width = self._size if self._rotation in (0, 180) else self._size[::-1]
        turned = self._new_frame(width, height, _PIXELS)
        for source, target in zip(frame.planes, turned.planes, strict=True):
            pixels, into = (np.frombuffer(one, np.uint8).reshape(-1, one.line_size) for one in (source, target))
            into[: target.height, : target.width] = np.rot90(pixels[: source.height, : source.width], -self._rotation // 90)
        turned.color_range, turned.colorspace = frame.color_range, frame.colorspace
        turned.color_primaries, turned.color_trc = frame.color_primaries, frame.color_trc
        return turned
