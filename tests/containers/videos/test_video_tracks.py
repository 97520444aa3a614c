"""The track of a video file has the packets that FFmpeg finds, and the frames that a player shows; bad files say why."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av")

from video_files import KINDS, NUM_FRAMES, decoded_in_order, pictures, remux, with_audio, write_video, x264  # noqa: E402

from datapipe.codecs.video.track import VideoTrack  # noqa: E402
from datapipe.containers.videos import reading  # noqa: E402
from datapipe.containers.videos.demux import read_demuxed  # noqa: E402
from datapipe.containers.videos.reading import read_track  # noqa: E402
from datapipe.errors import FormatError  # noqa: E402


def track_at(path: Path) -> VideoTrack:
    data = path.read_bytes()
    return read_track(lambda offset, size: data[offset : offset + size], len(data), str(path))


@pytest.mark.parametrize("name", KINDS)
def test_frames_are_those_that_a_player_shows_at_their_times(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    track = track_at(path)
    shown = decoded_in_order(path)
    assert track.frame_pts.tolist() == [frame.pts for frame in shown]
    assert track.times.tolist() == [frame.time for frame in shown]
    coding = track.coding
    assert (coding.width, coding.height) == (shown[0].width, shown[0].height)
    assert coding.pixel_format.replace("yuvj", "yuv") == shown[0].format.name.replace("yuvj", "yuv")
    assert coding.rotation == round(-shown[0].rotation / 90) % 4 * 90


@pytest.mark.parametrize("name", [name for name in KINDS if name.endswith((".mp4", ".mov")) and name != "h264-fragments.mp4"])
def test_boxes_say_what_the_demultiplexer_says(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    data = path.read_bytes()
    from_boxes = track_at(path)
    demuxed = read_demuxed(lambda offset, size: data[offset : offset + size], len(data), str(path), form="mov")
    assert from_boxes.coding.extradata == demuxed.coding.extradata
    assert from_boxes.frame_pts.tolist() == demuxed.frame_pts.tolist()
    for column in ("offset", "size"):
        ours, theirs = (getattr(track.packets, column)[track.frame_packet] for track in (from_boxes, demuxed))
        assert ours.tolist() == theirs.tolist()


FRAGMENTS = (
    "frag_keyframe+empty_moov", "frag_keyframe+empty_moov+default_base_moof", "frag_keyframe+empty_moov+separate_moof", "dash",
    "frag_keyframe+empty_moov+omit_tfhd_offset", "frag_keyframe+empty_moov+negative_cts_offsets", "frag_keyframe",
    "frag_every_frame+empty_moov+default_base_moof", "cmaf+frag_keyframe+empty_moov",
)  # fmt: skip


@pytest.mark.parametrize("flags", FRAGMENTS)
@pytest.mark.parametrize("name", ["h264-open.mp4", "h264.mp4", "hevc.mp4"])
def test_fragments_of_every_kind(name: str, flags: str, tmp_path: Path) -> None:
    whole = KINDS[name](tmp_path / name)
    path = remux(whole, tmp_path / "fragments.mp4", container={"movflags": flags})
    data = path.read_bytes()
    track = track_at(path)
    demuxed = read_demuxed(lambda offset, size: data[offset : offset + size], len(data), str(path), form="mov")
    assert track.coding == demuxed.coding
    assert track.frame_pts.tolist() == demuxed.frame_pts.tolist()
    for column in ("offset", "size", "is_key"):
        assert getattr(track.packets, column).tolist() == getattr(demuxed.packets, column).tolist()


def test_leading_frames_of_open_groups_belong_to_the_group_before(tmp_path: Path) -> None:
    for name in ("h264-open.mp4", "hevc-open.mp4", "mpeg4.mp4"):
        track = track_at(KINDS[name](tmp_path / name))
        assert len(track.group_frame) > 2
        begins = track.frame_packet[track.group_frame[1:]]
        assert begins.tolist() == track.group_packet[1:].tolist()  # each begins with the frame of its key packet
        leading = track.frame_packet > track.group_packet[np.minimum(track.groups_of(np.arange(len(track))) + 1, 3)]
        assert leading.any()
    closed = track_at(KINDS["hevc-radl.mp4"](tmp_path / "hevc-radl.mp4"))
    assert (closed.frame_packet[closed.group_frame[1:]] > closed.group_packet[1:]).any()  # its leading frames need no other


def test_key_packets_that_need_what_is_before_them_begin_no_group(tmp_path: Path) -> None:
    track = track_at(KINDS["h264-refresh.mp4"](tmp_path / "a.mp4"))
    assert track.packets.is_key.sum() > 1
    assert track.group_packet.tolist() == [0]


def test_parameters_that_change_are_noted(tmp_path: Path) -> None:
    assert track_at(KINDS["h264-size-change.mp4"](tmp_path / "a.mp4")).coding.changes_parameters
    assert not track_at(KINDS["h264.mp4"](tmp_path / "b.mp4")).coding.changes_parameters


def test_a_delayed_track_begins_late(tmp_path: Path) -> None:
    assert track_at(KINDS["h264-late.mp4"](tmp_path / "a.mp4")).times[0] == 1.5


@pytest.mark.parametrize(("name", "num_frames"), [("h264-cut.mp4", 23), ("h264-fragments.mp4", 40)])
def test_no_library_opens_mp4(name: str, num_frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = KINDS[name](tmp_path / "a.mp4")
    monkeypatch.setattr(reading, "read_demuxed", None)
    assert len(track_at(path)) == num_frames


def two_videos(path: Path) -> Path:
    with av.open(str(path), "w") as output:
        streams = []
        for _ in range(2):
            stream = output.add_stream("mpeg4", rate=30)
            stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
            streams.append(stream)
        for image in pictures(4):
            for stream in streams:
                output.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        for stream in streams:
            output.mux(stream.encode(None))
    return path


def only_sound(path: Path) -> Path:
    whole = with_audio(path.with_name("whole.mp4"))
    with av.open(str(whole)) as held, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(held.streams.audio[0])
        for packet in held.demux(audio=0):
            if packet.size:
                packet.stream = stream
                output.mux(packet)
    return path


def changed(path: Path, kind: bytes, place: int, form: str, value: int) -> Path:
    """A file with a number of a box, `place` bytes after its type, changed."""
    data = bytearray(write_video(path, options=x264("bframes=2")).read_bytes())
    struct.pack_into(form, data, data.rfind(kind) + 4 + place, value)
    path.write_bytes(data)
    return path


def cut(path: Path, *, front: bool = False, nbytes: int = 3000) -> Path:
    written = write_video(path, options=x264("bframes=2"), container={"movflags": "faststart"} if front else {})
    path.write_bytes(written.read_bytes()[:nbytes])
    return path


def text(path: Path, words: bytes) -> Path:
    path.write_bytes(words)
    return path


WRONG = {
    "no table of contents": (lambda path: cut(path), "has no table of contents (moov); its data ends at byte"),
    "packets cut off": (lambda path: cut(path, front=True, nbytes=7000), r"packet \d+ of 40 ends at byte \d+ of 7000: cut"),
    "table of contents cut off": (lambda path: cut(path, front=True, nbytes=900), "its table of contents (moov) has"),
    "only sound": (only_sound, "has 0 video tracks, expected 1"),
    "two videos": (two_videos, "has 2 video tracks, expected 1"),
    "two videos in Matroska": (lambda path: two_videos(path.with_suffix(".mkv")), "has 2 video tracks, expected 1"),
    "empty": (lambda path: text(path, b""), "no video file (0 bytes"),
    "text": (lambda path: text(path, b"Not a video at all, but a line of text"), "no video file (38 bytes"),
    "playlist": (lambda path: text(path, b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n"), "no video file"),
    "more packets than the table": (lambda path: changed(path, b"stsz", 8, ">I", 1 << 30), "a table of 1073741824 entries"),
    "packets of one size that are too many": (lambda path: changed(path, b"stsz", 4, ">I", 1 << 20), "packets of 1048576 bytes"),
    "packets beyond the end": (lambda path: changed(path, b"stco", 8, ">I", 1 << 30), r"ends at byte \d+ of \d+: cut"),
    "chunks that do not ascend": (lambda path: changed(path, b"stsc", 8, ">I", 7), "does not ascend"),
    "no time": (lambda path: changed(path, b"mdhd", 12, ">I", 0), "a second has no units of time"),
    "a box that does not fit": (lambda path: changed(path, b"mdia", -8, ">I", 1 << 30), "does not fit"),
    "no frame shown": (lambda path: changed(path, b"elst", 12, ">i", 1 << 30), "no frame of it is shown"),
    "a stream for broadcast": (
        lambda path: remux(write_video(path, options=x264("bframes=2")), path.with_suffix(".ts")),
        "does not lie in the file in one piece; remux it",
    ),
    "damaged Matroska": (lambda path: text(path.with_suffix(".mkv"), b"\x1aE\xdf\xa3" + bytes(300)), "FFmpeg does not read it"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_say_why(case: str, tmp_path: Path) -> None:
    write, message = WRONG[case]
    path = write(tmp_path / "a.mp4")
    pattern = message if "\\d" in message else message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(FormatError, match=pattern) as caught:
        track_at(path)
    assert str(caught.value).startswith(str(path))


def test_long_runs_are_cut_to_the_packets(tmp_path: Path) -> None:
    """A table of times may say that a run has four billion packets."""
    path = changed(tmp_path / "a.mp4", b"stts", 8, ">I", 0xFFFFFFFF)
    assert len(track_at(path)) == NUM_FRAMES


@pytest.mark.parametrize("seed", range(5))
def test_damage_gives_a_track_or_an_error_of_ours(seed: int, tmp_path: Path) -> None:
    path = KINDS[["h264-cut.mp4", "hevc.mp4", "av1.mp4", "mpeg4.mp4", "h264-fragments.mp4"][seed]](tmp_path / "a.mp4")
    whole = path.read_bytes()
    moov = whole.rfind(b"moov")
    rng = random.Random(seed)
    num_tracks, messages = 0, []
    for _ in range(250):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(moov, len(data))] = rng.choice([0, 1, 255, rng.randrange(256)])
        try:
            track = read_track(lambda offset, size, data=bytes(data): data[offset : offset + size], len(data), "a.mp4")
        except FormatError as exc:
            messages.append(str(exc))
        else:
            num_tracks += 1
            assert int((track.packets.offset + track.packets.size).max()) <= len(data)
    assert num_tracks
    assert all(message.startswith("a.mp4: ") for message in messages)
