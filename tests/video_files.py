"""Video files of every odd kind, written by PyAV and a few bytes of our own, and what FFmpeg makes of them in order."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from benchmarks.episode_data import same_priority
from datapipe.codecs.video.track import ReadAt, VideoTrack
from datapipe.opening.videos.reading import read_track

NUM_FRAMES = 40
X264 = "scenecut=0:keyint=12:min-keyint=12"
X265 = f"{X264}:log-level=none:pools=1:frame-threads=1"
Frames = Sequence[NDArray[Any]]


@functools.cache
def pictures(num: int = NUM_FRAMES, width: int = 96, height: int = 64, seed: int = 0) -> tuple[NDArray[np.uint8], ...]:
    """RGB pictures of a scene that moves, with some noise: all differ."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    found = []
    for time in range(num):
        waves = [np.sin((x + 3 * time) / 9 + c) + np.cos((y - 2 * time) / 7 - c) for c in range(3)]
        image = 128 + 50 * np.stack(waves, -1)
        top, left = (5 * time) % max(1, height - 16), (7 * time) % max(1, width - 16)
        image[top : top + 16, left : left + 16] = (40 * time % 255, 200, 30)
        found.append(np.clip(image + rng.normal(0, 4, image.shape), 0, 255).astype(np.uint8))
    return tuple(found)


def write_video(
    path: Path,
    codec: str = "libx264",
    *,
    frames: Iterable[NDArray[Any]] | None = None,
    options: dict[str, str] | None = None,
    pixel_format: str = "yuv420p",
    source_format: str = "rgb24",
    pts: Sequence[int] | None = None,
    context: dict[str, Any] | None = None,
    container: dict[str, str] | None = None,
    more: Callable[[Any, Any], None] | None = None,
) -> Path:
    """Write frames as a video; return the path.

    `pts`: of the frames, in 1/30 s. `context`: attributes of the encoder. `more`: called with the container and the stream before
    its end.
    """
    frames = list(pictures() if frames is None else frames)
    with same_priority(), av.open(str(path), "w", options=container or {}) as output:
        stream = output.add_stream(codec, rate=30)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pixel_format
        stream.options = {"preset": "ultrafast", **(options or {})} if "x26" in codec else options or {}
        stream.codec_context.thread_count = 1
        for name, value in (context or {}).items():
            setattr(stream.codec_context, name, value)
        for number, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), source_format)
            frame.pts, frame.time_base = (number if pts is None else pts[number]), Fraction(1, 30)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if more is not None:
            more(output, stream)
    return path


def x264(parameters: str, *, preset: str = "veryfast") -> dict[str, str]:
    return {"x264-params": f"{X264}:{parameters}", "preset": preset}


def x265(parameters: str) -> dict[str, str]:
    return {"x265-params": f"{X265}:{parameters}"}


def remux(source: Path, path: Path, *, shift_s: float = 0.0, first: int = 0, container: dict[str, str] | None = None) -> Path:
    """Copy the packets of a video from one on, their times shifted, as `ffmpeg -ss TIME -c copy` does."""
    with av.open(str(source)) as held, av.open(str(path), "w", options=container or {}) as output:
        stream = output.add_stream_from_template(held.streams.video[0])
        shift = round(shift_s / held.streams.video[0].time_base)
        for packet in [one for one in held.demux(video=0) if one.size][first:]:
            packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
            packet.stream = stream
            output.mux(packet)
    return path


def with_audio(path: Path) -> Path:
    """Write a video whose packets lie between those of sound."""
    frames = pictures()
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=30, options=x264("bframes=2"))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        sound = output.add_stream("aac", rate=16_000, layout="mono")
        for number, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(image, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 30)
            output.mux(stream.encode(frame))
            samples = np.sin(np.arange(533) / 9).astype(np.float32)[None]
            heard = av.AudioFrame.from_ndarray(samples, "fltp", "mono")
            heard.sample_rate, heard.pts, heard.time_base = 16_000, 533 * number, Fraction(1, 16_000)
            output.mux(sound.encode(heard))
        output.mux(stream.encode(None))
        output.mux(sound.encode(None))
    return path


def with_size_change(path: Path) -> Path:
    """Write a video that goes on in another size: its later key frames bring parameter sets of their own."""

    def go_on(output: Any, stream: Any) -> None:
        context = av.CodecContext.create("libx264", "w")
        context.width, context.height, context.pix_fmt = 64, 48, "yuv420p"
        context.time_base, context.options = Fraction(1, 30), x264("bframes=2")
        packets = []
        for number, image in enumerate(pictures(20, 64, 48)):
            frame = av.VideoFrame.from_ndarray(image, "rgb24")
            frame.pts, frame.time_base = NUM_FRAMES + number, Fraction(1, 30)
            packets += context.encode(frame)
        for packet in packets + context.encode(None):
            packet.stream, packet.time_base = stream, Fraction(1, 30)
            output.mux(packet)

    return write_video(path, options=x264("bframes=2"), more=go_on)


def patch_edit(path: Path, *, duration: int | None = None, start: int | None = None) -> Path:
    """Change the last edit of an mp4 file: `duration` in units of the movie, `start` in units of the track."""
    data = bytearray(path.read_bytes())
    place = data.find(b"elst")
    count = struct.unpack_from(">I", data, place + 8)[0]
    entry = place + 12 + 12 * (count - 1)
    if duration is not None:
        struct.pack_into(">I", data, entry, duration)
    if start is not None:
        struct.pack_into(">i", data, entry + 4, start)
    path.write_bytes(data)
    return path


def turn(path: Path) -> Path:
    """Have players turn the frames of an mp4 file clockwise by 90 degrees."""
    data = bytearray(path.read_bytes())
    struct.pack_into(">5i", data, data.find(b"tkhd") + 44, 0, 1 << 16, 0, -1 << 16, 0)
    path.write_bytes(data)
    return path


def _cut(path: Path) -> Path:
    whole = write_video(path.with_name(f"whole-{path.name}"), options=x264("bframes=2"))
    return remux(whole, path, first=12, shift_s=-17 / 30)


def _cut_open(path: Path) -> Path:
    whole = write_video(path.with_name(f"whole-{path.name}"), options=x264("bframes=2:open-gop=1"))
    with av.open(str(whole)) as held:
        keys = [number for number, one in enumerate(held.demux(video=0)) if one.is_keyframe and one.size]
    return remux(whole, path, first=keys[1], shift_s=-12 / 30)


def _irregular(path: Path) -> Path:
    steps = np.random.default_rng(1).integers(1, 9, NUM_FRAMES)
    return write_video(path, pts=np.cumsum(steps).tolist(), options=x264("bframes=3"))


def _shorter(path: Path) -> Path:
    return patch_edit(write_video(path, options=x264("bframes=3")), duration=700)


KINDS: dict[str, Callable[[Path], Path]] = {  # name of the file -> what writes it
    "h264.mp4": lambda path: write_video(path, options=x264("bframes=3:b-pyramid=normal")),
    "h264-open.mp4": lambda path: write_video(path, options=x264("bframes=3:open-gop=1")),
    "h264-open.mkv": lambda path: write_video(path, options=x264("bframes=3:open-gop=1")),
    "h264-refresh.mp4": lambda path: write_video(path, options=x264("intra-refresh=1:bframes=0")),
    "h264-slices.mp4": lambda path: write_video(path, options=x264("slices=3:bframes=2")),
    "h264-interlaced.mp4": lambda path: write_video(path, options=x264("tff=1:bframes=2")),
    "h264-10bit.mp4": lambda path: write_video(path, pixel_format="yuv420p10le", options=x264("bframes=2")),
    "h264-444.mp4": lambda path: write_video(path, pixel_format="yuv444p", options=x264("bframes=2")),
    "h264-odd.mp4": lambda path: write_video(
        path, frames=pictures(NUM_FRAMES, 75, 51), pixel_format="yuv444p", options=x264("bframes=2")
    ),
    "h264-full-range.mp4": lambda path: write_video(
        path, options=x264("bframes=2"), context={"color_range": 2, "colorspace": 1, "color_primaries": 1, "color_trc": 1}
    ),
    "h264-audio.mp4": with_audio,
    "h264-irregular.mp4": _irregular,
    "h264-size-change.mp4": with_size_change,
    "h264-rotated.mp4": lambda path: turn(write_video(path, options=x264("bframes=2"))),
    "h264-fragments.mp4": lambda path: write_video(
        path, options=x264("bframes=2"), container={"movflags": "frag_keyframe+empty_moov"}
    ),
    "h264-cut.mp4": _cut,
    "h264-cut-open.mp4": _cut_open,
    "h264-shorter.mp4": _shorter,
    "h264-late.mp4": lambda path: remux(write_video(path.with_name("early.mp4"), options=x264("bframes=2")), path, shift_s=1.5),
    "h264.mov": lambda path: write_video(path, options=x264("bframes=2")),
    "h264.avi": lambda path: write_video(path, options=x264("bframes=0")),
    "h264.ts": lambda path: write_video(path, options=x264("bframes=3:b-pyramid=normal")),
    "h264-open.m2ts": lambda path: write_video(
        path, options=x264("bframes=3:open-gop=1"), container={"mpegts_m2ts_mode": "1", "mpegts_flags": "resend_headers"}
    ),
    "hevc-open.ts": lambda path: write_video(path, "libx265", options=x265("bframes=3:open-gop=1")),
    "mpeg2.mts": lambda path: write_video(
        path, "mpeg2video", options={"g": "12", "bf": "2", "sc_threshold": "1000000000"}, container={"f": "mpegts"}
    ),
    "h264.flv": lambda path: write_video(path, options=x264("bframes=2")),
    "hevc.mp4": lambda path: write_video(path, "libx265", options=x265("bframes=3:open-gop=0")),
    "hevc-open.mp4": lambda path: write_video(path, "libx265", options=x265("bframes=3:open-gop=1")),
    "hevc-layers.mp4": lambda path: write_video(path, "libx265", options=x265("bframes=3:temporal-layers=3:b-pyramid=1")),
    "hevc-radl.mp4": lambda path: write_video(path, "libx265", options=x265("bframes=3:open-gop=0:radl=2")),
    "hevc-hdr.mp4": lambda path: write_video(
        path,
        "libx265",
        pixel_format="yuv420p10le",
        options=x265("bframes=2"),
        context={"colorspace": 9, "color_primaries": 9, "color_trc": 16},
    ),
    "av1.mp4": lambda path: write_video(path, "libsvtav1", options={"g": "12", "preset": "12"}),
    "av1.mkv": lambda path: write_video(path, "libsvtav1", options={"g": "2", "preset": "12"}),
    "vp9.webm": lambda path: write_video(path, "libvpx-vp9", options={"g": "12", "cpu-used": "8", "deadline": "realtime"}),
    "vp9-odd.mp4": lambda path: write_video(
        path, "libvpx-vp9", frames=pictures(NUM_FRAMES, 75, 51), options={"g": "12", "cpu-used": "8", "auto-alt-ref": "1"}
    ),
    "mpeg4.mp4": lambda path: write_video(path, "mpeg4", options={"g": "12", "bf": "2", "sc_threshold": "1000000000"}),
    "mpeg4.avi": lambda path: write_video(path, "mpeg4", options={"g": "12", "bf": "2", "sc_threshold": "1000000000"}),
    "mjpeg.mov": lambda path: write_video(path, "mjpeg", pixel_format="yuvj422p"),
    "depth.mkv": lambda path: write_video(path, "ffv1", frames=depths(), pixel_format="gray16le", source_format="gray16le"),
    "depth.mp4": lambda path: write_video(
        path, "libx265", frames=depths(12), pixel_format="gray12le", source_format="gray12le", options=x265("bframes=2")
    ),
}


def depths(bits: int = 16) -> Frames:
    """Maps of depth, whole numbers of so many bits."""
    return [(image.astype(np.uint16)[:, :, 0] * 257) >> (16 - bits) for image in pictures()]


def decoded_in_order(path: Path) -> list[Any]:
    """The frames of a video as PyAV's container decodes them from the first to the last."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return list(container.decode(stream))


def planes(frame: Any) -> list[NDArray[np.uint8]]:
    """The samples of a frame, without what pads its lines."""
    nbytes = (frame.format.components[0].bits + 7) // 8
    rows = [np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:, : plane.width * nbytes] for plane in frame.planes]
    return [one[: plane.height].copy() for one, plane in zip(rows, frame.planes, strict=True)]


def same(frame: Any, expected: list[NDArray[np.uint8]]) -> bool:
    return all(map(np.array_equal, planes(frame), expected))


def bytes_of(path: Path) -> tuple[bytes, ReadAt]:
    data = path.read_bytes()
    return data, lambda offset, size: data[offset : offset + size]


def opened(path: Path) -> tuple[VideoTrack, ReadAt]:
    data, read = bytes_of(path)
    return read_track(read, len(data), str(path)), read
