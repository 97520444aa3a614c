"""What `fuzz` looks at of videos: their containers, with times, without, and in fragments; and what damage does to neighbours."""

from __future__ import annotations

import functools
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from video_files import X265, pictures, write_video, x264

from datapipe.codecs.video.decoding import VideoDecoder
from datapipe.codecs.video.track import VideoTrack
from datapipe.errors import DecodeError
from datapipe.opening.videos.reading import read_track

_NUM, _WIDTH, _HEIGHT = 14, 48, 32


def video_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)

        def made(name: str, options: str, **more: str) -> Path:
            frames = pictures(_NUM, _WIDTH, _HEIGHT)
            return write_video(root / name, frames=frames, options=x264(options), container=more)

        stream = made("a.ts", "bframes=2:keyint=6").read_bytes()
        paths = [
            made("a.avi", "bframes=2"),  # whose packets have no times
            _without_times(made("a.mp4", "bframes=2"), root / "b.mp4"),
            made("c.mkv", "bframes=2"),
            made("d.mp4", "bframes=2", movflags="frag_keyframe+empty_moov+default_base_moof"),
        ]
        return [path.read_bytes() for path in paths] + [2 * stream]


def _without_times(source: Path, path: Path) -> Path:
    """Copy packets that are shown when they are decoded, as `ffmpeg -c copy` copies those of AVI."""
    with av.open(str(source)) as held, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(held.streams.video[0])
        for number, packet in enumerate(one for one in held.demux(video=0) if one.size):
            packet.pts = packet.dts = number
            packet.time_base, packet.stream = Fraction(1, 30), stream
            output.mux(packet)
    return path


_CODINGS = {"h264": "libx264", "hevc": "libx265", "mpeg4": "mpeg4", "mpeg2video": "mpeg2video", "vp8": "libvpx", "mjpeg": "mjpeg"}


@functools.cache
def neighbours() -> dict[str, bytes]:
    """A video of each coding."""
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, codec in _CODINGS.items():
            form = "yuvj420p" if name == "mjpeg" else "yuv420p"
            options = {"x265-params": X265} if name == "hevc" else {}
            frames = pictures(_NUM, 2 * _WIDTH, 2 * _HEIGHT)  # x265 writes beyond its memory for smaller ones
            path = write_video(Path(directory) / "a.mkv", codec, frames=frames, pixel_format=form, options=options)
            found[name] = path.read_bytes()
    return found


def look_at_neighbours(data: bytes, scratch: Path) -> None:
    """What is decoded does not depend on what the same decoder has met before."""
    track = read_track(lambda offset, size: data[offset : offset + size], len(data), str(scratch))
    alone, decoder = _decoded(VideoDecoder(), track, data), VideoDecoder()
    for _ in range(2):
        assert _decoded(decoder, track, data) == alone, "other frames of the damaged video"
        for name, (other, expected) in _whole().items():
            assert _decoded(decoder, other, neighbours()[name]) == expected, f"other frames of a sound video, {name}"


@functools.cache
def _whole() -> dict[str, tuple[VideoTrack, list[Any]]]:
    """The tracks of the sound videos, and their frames."""
    found = {}
    for name, data in neighbours().items():
        track = look_at_video(data, Path(name))
        found[name] = track, _decoded(VideoDecoder(), track, data)
        assert not any(isinstance(frame, str) for frame in found[name][1])
    return found


def _decoded(decoder: VideoDecoder, track: VideoTrack, data: bytes) -> list[Any]:
    """The pixels of each frame, or its error."""
    found = dict(decoder.decode(track, lambda place, num: data[place : place + num], np.arange(len(track))))
    return [str(one) if isinstance(one, DecodeError) else one.to_ndarray().tobytes() for _, one in sorted(found.items())]


def look_at_video(data: bytes, scratch: Path) -> VideoTrack:
    track = read_track(lambda offset, size: data[offset : offset + size], len(data), str(scratch))
    ends = track.packets.offset + track.packets.size
    assert int(track.packets.offset.min()) >= 0
    assert int(ends.max()) <= len(data) or track.packets.framing is not None
    assert (track.times[1:] >= track.times[:-1]).all()
    return track
