"""Frames come in the order in which a decoder gives them, also where the times of a container say nothing of it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

av = pytest.importorskip("av")

from video_files import KINDS, NUM_FRAMES, decoded_in_order, opened, pictures, planes, same, write_video, x264, x265  # noqa: E402

from datapipe.codecs.video.decoding import VideoDecoder  # noqa: E402
from datapipe.codecs.video.nal_units import is_bidirectional, length_nbytes  # noqa: E402
from datapipe.errors import FormatError  # noqa: E402

B_FRAMES = {"g": "12", "bf": "2", "sc_threshold": "1000000000"}


def with_times_of_decoding(source: Path, path: Path, *, held_back: int = 0) -> Path:
    """Copy the packets of a video, shown when they are decoded: what `ffmpeg -c copy` makes of AVI and of raw streams.

    `held_back`: packets at the beginning that keep a time of their own, as in what is made of MPEG-PS.
    """
    with av.open(str(source)) as held, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(held.streams.video[0])
        for number, packet in enumerate(one for one in held.demux(video=0) if one.size):
            packet.dts = number
            packet.pts = number + 1 if number < held_back else number
            packet.time_base, packet.stream = 1 / stream_rate(held), stream
            output.mux(packet)
    return path


def stream_rate(container: Any) -> Any:
    return container.streams.video[0].average_rate


def assert_as_decoded(path: Path) -> None:
    """The frames are those that PyAV's decoder gives from the first to the last, also if each is decoded by itself."""
    track, read = opened(path)
    expected = [planes(frame) for frame in decoded_in_order(path)]
    decoder = VideoDecoder()
    assert len(track) == len(expected)
    for number, frame in decoder.decode(track, read, np.arange(len(track))):
        assert same(frame, expected[number]), number
    for alone in range(0, len(track), 7):
        ((number, frame),) = decoder.decode(track, read, np.array([alone]))
        assert (number, same(frame, expected[alone])) == (alone, True)
    assert (np.diff(track.times) >= 0).all()


def test_h264_with_b_frames_in_avi(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", options=x264("bframes=3:b-pyramid=normal"))
    assert_as_decoded(path)
    assert opened(path)[0].times == pytest.approx(np.arange(1, NUM_FRAMES + 1) / 30)  # as FFmpeg counts packets of AVI


SOURCES: dict[str, Callable[[Path], Path]] = {
    "h264": lambda path: write_video(path, options=x264("bframes=2")),
    "h264-open": lambda path: write_video(path, options=x264("bframes=3:open-gop=1")),
    "hevc": lambda path: write_video(path, "libx265", options=x265("bframes=3:open-gop=1")),
    "mpeg4": lambda path: write_video(path, "mpeg4", options=B_FRAMES),
    "mpeg2": lambda path: write_video(path, "mpeg2video", options=B_FRAMES),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("ending", ["mp4", "mkv"])
@pytest.mark.parametrize("name", SOURCES)
def test_packets_that_were_copied_without_their_times(name: str, ending: str, tmp_path: Path) -> None:
    source = SOURCES[name](tmp_path / "source.mp4")
    assert_as_decoded(with_times_of_decoding(source, tmp_path / f"a.{ending}"))


def test_packets_some_of_which_kept_their_times(tmp_path: Path) -> None:
    source = SOURCES["h264"](tmp_path / "source.mp4")
    assert_as_decoded(with_times_of_decoding(source, tmp_path / "a.mkv", held_back=3))


def test_videos_without_b_frames_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are those whose B-frames have times: opening a video costs a look at a few packets at most."""
    monkeypatch.setattr(VideoDecoder, "display_order", None)
    for name, options in (("a", x264("bframes=0")), ("b", x264("bframes=2")), ("c", x264("intra-refresh=1:bframes=0"))):
        assert len(opened(write_video(tmp_path / f"{name}.mp4", options=options))[0]) == NUM_FRAMES


def test_a_damaged_packet_without_a_time_stays_a_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", options=x264("bframes=2"))
    track, read = opened(path)
    data = bytearray(path.read_bytes())
    place = int(track.packets.offset[14])
    data[place : place + int(track.packets.size[14])] = bytes(int(track.packets.size[14]))
    path.write_bytes(data)
    track, read = opened(path)
    assert len(track) == NUM_FRAMES
    found = dict(VideoDecoder().decode(track, read, np.arange(len(track))))
    assert any(isinstance(one, Exception) for one in found.values())
    assert {*found} == {*range(NUM_FRAMES)}


@pytest.mark.parametrize("name", SOURCES)
def test_b_frames_are_told_by_their_headers(name: str, tmp_path: Path) -> None:
    path = SOURCES[name](tmp_path / "a.mp4")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        codec, extradata = stream.codec_context.name, stream.codec_context.extradata or b""
        packets = [bytes(packet) for packet in container.demux(stream) if packet.size]
        kinds = {frame.pts: frame.pict_type for frame in decoded_in_order(path)}
        pts = [packet.pts for packet in av.open(str(path)).demux(video=0) if packet.size]
    found = [is_bidirectional(codec, data[:64], length_nbytes(codec, extradata)) for data in packets]
    assert found == [kinds[time] == av.video.frame.PictureType.B for time in pts]
    assert any(found)


def joined_by_cat(path: Path, write: Callable[[Path], Path], *, cut_packets: int = 0) -> tuple[Path, list[Any], list[Any]]:
    """Write two videos, one after the other; return the path, and the frames of each.

    `cut_packets`: of the transport stream, packets that are missing at the beginning of the second one.
    """
    first, second = write(path.with_name(f"1-{path.name}")), write(path.with_name(f"2-{path.name}"))
    shown = [[planes(frame) for frame in decoded_in_order(one)] for one in (first, second)]
    data = second.read_bytes()
    if cut_packets:
        track, _ = opened(second)
        data = data[int(track.packets.offset[cut_packets]) :]
    path.write_bytes(first.read_bytes() + data)
    return path, shown[0], shown[1]


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", ["h264.ts", "mpeg2.mts", "h264-open.mkv", "vp9.webm", "h264-open.m2ts", "hevc-open.ts"])
def test_time_stamps_that_begin_again(name: str, tmp_path: Path) -> None:
    path, first, second = joined_by_cat(tmp_path / name, KINDS[name])
    track, read = opened(path)
    expected = [*first, *second]
    found = dict(VideoDecoder().decode(track, read, np.arange(len(track))))
    assert [same(found[number], one) for number, one in enumerate(expected)] == [True] * len(expected)
    assert len(track) == len(expected)
    assert (np.diff(track.times) > 0).all()
    assert np.diff(track.times).max() < 0.04  # the second part goes on where the first one ends
    alone = dict(VideoDecoder().decode(track, read, np.array([len(first) + 2])))
    assert same(alone[len(first) + 2], second[2])


def test_a_second_part_that_is_cut_begins_with_its_first_key_frame(tmp_path: Path) -> None:
    path, first, second = joined_by_cat(tmp_path / "a.ts", KINDS["h264.ts"], cut_packets=3)
    track, read = opened(path)
    expected = [*first, *second[12:]]
    found = dict(VideoDecoder().decode(track, read, np.arange(len(track))))
    assert len(track) == len(expected)
    assert all(same(found[number], one) for number, one in enumerate(expected))


def test_videos_of_transport_streams_that_were_joined_three_times(tmp_path: Path) -> None:
    path, first, second = joined_by_cat(tmp_path / "a.ts", KINDS["h264.ts"])
    path.write_bytes(path.read_bytes() + path.with_name("1-a.ts").read_bytes())
    track, read = opened(path)
    found = dict(VideoDecoder().decode(track, read, np.arange(len(track))))
    assert all(same(found[number], one) for number, one in enumerate([*first, *second, *first]))
    assert track.times == pytest.approx(np.arange(3 * NUM_FRAMES) / 30)


def packed(path: Path) -> Path:
    """Write MPEG-4 as DivX and XviD do into AVI: a packet has a frame and the B-frame that needs it, the next one is empty."""
    source = write_video(path.with_suffix(".mp4"), "mpeg4", options={**B_FRAMES, "bf": "1"})
    with av.open(str(source)) as held, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(held.streams.video[0])
        stream.codec_context.extradata = held.streams.video[0].codec_context.extradata + b"\0\0\1\xb2DivX503b1393p"
        packets = [bytes(packet) for packet in held.demux(video=0) if packet.size]
        times = itertools.count()
        while packets:
            data = packets.pop(0)
            is_followed = packets and is_bidirectional("mpeg4", packets[0], 0)
            parts = [data + packets.pop(0), b"\0\0\1\xb6\x50\x4f"] if is_followed else [data]
            for part in parts:
                packet = av.Packet(part)
                packet.stream, packet.time_base = stream, Fraction(1, 30)
                packet.pts = packet.dts = next(times)
                packet.is_keyframe = len(part) > 19 and part[part.index(b"\0\0\1\xb6") + 4] >> 6 == 0
                output.mux(packet)
    return path


def test_mpeg4_with_two_frames_in_a_packet(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.avi")
    source = [planes(frame) for frame in decoded_in_order(path.with_suffix(".mp4"))]
    assert [planes(frame)[0].tolist() for frame in decoded_in_order(path)] == [one[0].tolist() for one in source]
    assert_as_decoded(path)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the command ffmpeg")
@pytest.mark.parametrize(("name", "codec"), [("a.mpg", "mpeg2video"), ("a.mpg", "libx264"), ("a.wmv", "wmv2")])
def test_the_command_that_a_message_names_gives_all_frames_in_order(name: str, codec: str, tmp_path: Path) -> None:
    options = {"libx264": x264("bframes=2"), "mpeg2video": B_FRAMES}.get(codec, {})
    path, made = write_video(tmp_path / name, codec, options=options), tmp_path / "made.mp4"
    with pytest.raises(FormatError, match=r"encode it again: ffmpeg -i IN .* OUT\.mp4$") as caught:
        opened(path)
    words = str(caught.value).partition("again: ")[2].replace("IN", str(path)).replace("OUT.mp4", str(made)).split()
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    track, read = opened(made)
    assert len(track) == NUM_FRAMES
    for number, frame in VideoDecoder().decode(track, read, np.arange(len(track))):
        differs = np.abs(frame.to_ndarray(format="rgb24").astype(int) - pictures()[number]).mean()
        others = np.abs(frame.to_ndarray(format="rgb24").astype(int) - pictures()[(number + 1) % NUM_FRAMES]).mean()
        assert differs < others


def test_mp4_files_joined_by_cat_are_the_first_one_as_for_players(tmp_path: Path) -> None:
    path, first, _ = joined_by_cat(tmp_path / "h264.mp4", KINDS["h264.mp4"])
    assert len(decoded_in_order(path)) == len(opened(path)[0]) == len(first)
    assert_as_decoded(path)
