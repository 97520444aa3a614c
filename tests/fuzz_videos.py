"""What `fuzz` looks at of videos: containers with times, without them, of several parts, and in fragments."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path

import av
from video_files import pictures, write_video, x264

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


def look_at_video(data: bytes, scratch: Path) -> object:
    track = read_track(lambda offset, size: data[offset : offset + size], len(data), str(scratch))
    ends = track.packets.offset + track.packets.size
    assert int(track.packets.offset.min()) >= 0
    assert int(ends.max()) <= len(data) or track.packets.framing is not None
    assert (track.times[1:] >= track.times[:-1]).all()
    return track
