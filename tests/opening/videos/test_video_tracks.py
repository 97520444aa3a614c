"""The track of a video file has the packets that FFmpeg finds, and the frames that a player shows; bad files say why."""

from __future__ import annotations

import io
import os
import random
import struct
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

av = pytest.importorskip("av")

from video_files import KINDS, NUM_FRAMES, decoded_in_order, pictures, remux, with_audio, write_video, x264  # noqa: E402

from datapipe.cli.main import main  # noqa: E402
from datapipe.codecs.video.decoding import VideoDecoder  # noqa: E402
from datapipe.codecs.video.runs import Part, Run, packets_in  # noqa: E402
from datapipe.codecs.video.track import VideoTrack  # noqa: E402
from datapipe.errors import FormatError  # noqa: E402
from datapipe.opening.videos import reading  # noqa: E402
from datapipe.opening.videos.demux import read_demuxed  # noqa: E402
from datapipe.opening.videos.fragments import fragmented_packets  # noqa: E402
from datapipe.opening.videos.reading import read_track  # noqa: E402


def track_at(path: Path) -> VideoTrack:
    data = path.read_bytes()
    return read_track(lambda offset, size: data[offset : offset + size], len(data), str(path))


def begin_of(path: Path) -> int:
    """Where a transport stream begins, in units of its times; 0 for other files."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return round(Fraction(container.start_time, av.time_base) / stream.time_base) if container.format.name == "mpegts" else 0


@pytest.mark.parametrize("name", KINDS)
def test_frames_are_those_that_a_player_shows_at_their_times(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    track = track_at(path)
    shown = decoded_in_order(path)
    first = begin_of(path)
    assert track.frame_pts.tolist() == [frame.pts - first for frame in shown]
    assert track.times.tolist() == [
        (frame.pts - first) * frame.time_base.numerator / frame.time_base.denominator for frame in shown
    ]
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


def two_videos(path: Path, *, default: int = 0, codec: str = "libx264", **options: Any) -> Path:
    """A video of two tracks, of 96 x 64 and 48 x 32 pixels. `default`: the one that is marked."""
    with av.open(str(path), "w", **options) as output:
        streams = []
        for number, size in enumerate(((64, 96), (32, 48))):
            stream = output.add_stream(codec, rate=30, options=x264("bframes=2") if codec == "libx264" else {})
            stream.height, stream.width = size
            stream.pix_fmt = "yuv420p"
            stream.disposition = av.stream.Disposition.default if number == default else av.stream.Disposition(0)
            streams.append((stream, pictures(20, size[1], size[0])))
        for number in range(20):
            for stream, images in streams:
                frame = av.VideoFrame.from_ndarray(images[number], "rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 30)
                output.mux(stream.encode(frame))
        for stream, _ in streams:
            output.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("default", [0, 1])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
def test_of_several_tracks_it_is_the_default_one(
    suffix: str, default: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_videos((tmp_path / "a").with_suffix(suffix), default=default)
    track = track_at(path)
    shown = 0 if suffix == ".ts" else default  # which marks none
    assert track.coding.shown_size == ((64, 96), (32, 48))[shown]
    assert (len(track), track.num_others) == (20, 1)
    with av.open(str(path)) as container:
        frames = list(container.decode(container.streams.video[shown]))
    assert decoded(path) == [frame.to_ndarray(format="gray").tobytes() for frame in frames]
    assert main(["inspect", str(path)]) == 0
    assert "tracks    1 video with several of video: read is the one that is marked as default" in capsys.readouterr().out


def test_a_cover_is_no_video(tmp_path: Path) -> None:
    held_image = io.BytesIO()
    Image.fromarray(pictures(1, 32, 32)[0]).save(held_image, "JPEG")
    image = held_image.getvalue()
    with av.open(str(KINDS["h264.mp4"](tmp_path / "a.mp4"))) as held, av.open(str(tmp_path / "a.mkv"), "w") as output:
        stream = output.add_stream_from_template(held.streams.video[0])
        output.add_attachment("cover.jpg", "image/jpeg", image)
        for packet in held.demux(video=0):
            if packet.size:
                packet.stream = stream
                output.mux(packet)
    data = (tmp_path / "a.mp4").read_bytes()
    cover = box(b"udta", box(b"meta", bytes(4) + box(b"ilst", box(b"covr", box(b"data", struct.pack(">II", 13, 0) + image)))))
    place = data.rindex(b"moov") - 4
    (nbytes,) = struct.unpack_from(">I", data, place)
    (tmp_path / "a.mp4").write_bytes(data[:place] + struct.pack(">I", nbytes + len(cover)) + data[place + 4 :] + cover)
    for name in ("a.mkv", "a.mp4"):
        track = track_at(tmp_path / name)
        assert (track.coding.codec, len(track), track.num_others) == ("h264", NUM_FRAMES, 0)
    with av.open(str(tmp_path / "a.mkv")) as container:
        assert len(container.streams.video) == 2


def box(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", 8 + len(data)) + kind + data


def decoded(path: Path) -> list[bytes]:
    """The frames of our track, grey."""
    data, track = path.read_bytes(), track_at(path)
    found = dict(VideoDecoder().decode(track, lambda offset, size: data[offset : offset + size], np.arange(len(track))))
    return [found[number].to_ndarray(format="gray").tobytes() for number in range(len(track))]


STREAMS = [name for name in KINDS if name.endswith(("ts", "mts"))]


def stamped(source: Path, path: Path, shift_s: float, *, first: int = 0) -> Path:
    """Copy a transport stream with other time stamps, from one of its packets on."""
    return remux(source, path, shift_s=shift_s, first=first, container={"mpegts_copyts": "1"})


@pytest.mark.parametrize("name", STREAMS)
def test_transport_streams_give_the_packets_and_frames_of_ffmpeg(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    data, track = path.read_bytes(), track_at(path)
    assert track.packets.framing is not None
    with av.open(str(path)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    run = Run((Part(0, {len(packets) - 1: 0}),))
    found = packets_in(track.packets, run, lambda offset, size: data[offset : offset + size])
    assert [bytes(packet) for _, packet in found] == packets
    assert decoded(path) == [frame.to_ndarray(format="gray").tobytes() for frame in decoded_in_order(path)]
    assert len(track.group_frame) > 2
    assert track.times[0] == 0


@pytest.mark.parametrize("shift_s", [0.0, 26_000.25, 2**33 / 90_000 - 2.1])
def test_time_stamps_that_begin_anywhere_and_wrap_around(shift_s: float, tmp_path: Path) -> None:
    """They have 33 bits, at 90,000 a second: the last case begins anew after 0.7 s."""
    source = KINDS["h264.ts"](tmp_path / "a.ts")
    path = stamped(source, tmp_path / "b.ts", shift_s)
    assert track_at(path).times == pytest.approx(track_at(source).times, abs=1e-9)
    assert decoded(path) == decoded(source)


def test_a_stream_that_is_cut_anywhere_begins_with_the_first_frame_that_decodes(tmp_path: Path) -> None:
    for name in ("h264-open.m2ts", "hevc-open.ts"):
        whole = KINDS[name](tmp_path / name)
        data, track = whole.read_bytes(), track_at(whole)
        stride = track.packets.framing.stride
        place = int(track.packets.offset[8]) + 3 * stride  # within a packet, before the second group
        cut_path = tmp_path / f"cut-{name}"
        tables = data[: 3 * stride]  # in which programs are listed
        cut_path.write_bytes(tables + data[place:])
        kept = track_at(cut_path)
        assert 0 < len(kept) < len(track)
        frames, found = decoded(whole), decoded(cut_path)
        assert found == frames[-len(found) :]
        assert len(found) == NUM_FRAMES - 12
        part = tmp_path / f"end-{name}"  # which ends within a packet
        part.write_bytes(data[: int(track.packets.offset[30]) + stride + 40])
        assert NUM_FRAMES - 14 < len(track_at(part)) < NUM_FRAMES


def in_one_pes(path: Path) -> Path:
    """A transport stream whose second packet of video begins no PES packet of its own."""
    source = KINDS["h264.ts"](path.with_suffix(".ts"))
    data, track = bytearray(source.read_bytes()), track_at(source)
    data[int(track.packets.offset[1]) + 1] ^= 0x40
    source.write_bytes(data)
    return source


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
    "no table of contents": (lambda path: cut(path), "has no table of contents (moov); it has "),
    "packets cut off": (lambda path: cut(path, front=True, nbytes=7000), r"packet \d+ of 40 ends at byte \d+ of 7000: cut"),
    "table of contents cut off": (lambda path: cut(path, front=True, nbytes=900), "its table of contents (moov) has"),
    "only sound": (only_sound, "has no video track; remove it"),
    "only sound in Matroska": (lambda path: only_sound(path.with_suffix(".mkv")), "has no video track; remove it"),
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
    "frames that share a PES packet": (
        lambda path: in_one_pes(path),
        r"packet \d+ (has no time|does not lie in packets of its own).*encode it again: ffmpeg -i IN -crf 18 OUT.mp4",
    ),
    "a transport stream without video": (lambda path: only_sound(path.with_suffix(".ts")), "has no video track; remove it"),
    "a damaged transport stream": (
        lambda path: text(path.with_suffix(".ts"), (b"G" + bytes(187)) * 9),
        "FFmpeg does not read it as mpegts",
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


def test_writing_av1_leaves_the_thread_its_priority(tmp_path: Path) -> None:
    """A real-time one would take the core from every other process, to the end of the tests."""
    before = os.sched_getscheduler(0)
    KINDS["av1.mkv"](tmp_path / "av1.mkv")
    assert os.sched_getscheduler(0) == before


@pytest.mark.parametrize("size", [0, 1, 100])
def test_fragments_that_claim_more_packets_than_the_file_has_bytes(size: int) -> None:
    """Each of the runs could be, and all of them take gigabytes."""
    nbytes, num_runs = 1 << 16, 4000
    trex = struct.pack(">I5I", 0, 1, 1, 512, size, 0)
    moov = box(b"mvex", box(b"trex", trex))
    run = box(b"trun", struct.pack(">IIi", 1, nbytes // max(1, size), 0))  # no field for each packet
    moof = box(b"moof", box(b"traf", box(b"tfhd", struct.pack(">II", 0x20000, 1)) + num_runs * run))
    data = moof + bytes(max(0, nbytes - len(moof)))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"a run says that it has \d+ packets, and has no place for them"):
            fragmented_packets(moov, 1, lambda offset, count: data[offset : offset + count], len(data))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_what_is_left_to_ffmpeg_claims_no_more_either(tmp_path: Path) -> None:
    """A run whose place is that after the one before, of a number of packets for which FFmpeg takes gigabytes."""
    path = KINDS["h264-fragments.mp4"](tmp_path / "a.mp4")
    data = bytearray(path.read_bytes())
    place = data.index(b"trun") + 4
    struct.pack_into(">II", data, place, 0, 1 << 28)
    path.write_bytes(data)
    with pytest.raises(
        FormatError, match=r"damaged mp4: its runs say that they have \d+ packets in \d+ bytes; get the file again"
    ):
        track_at(path)


def test_damage_in_a_transport_stream_is_an_error_of_ours(tmp_path: Path) -> None:
    """Also where a packet seems to be of a stream that its beginning does not name, for which PyAV raises IndexError."""
    data = write_video(tmp_path / "a.ts", options=x264("bframes=2")).read_bytes()
    messages = []
    for seed in range(40):
        rng, damaged = np.random.default_rng(seed), bytearray(data)
        for _ in range(20):
            damaged[int(rng.integers(len(data) // 188)) * 188 + int(rng.integers(12))] = int(rng.integers(256))
        whole = bytes(damaged)
        try:
            read_track(lambda place, num, whole=whole: whole[place : place + num], len(whole), "a.ts")
        except FormatError as exc:
            messages.append(str(exc))
    assert any("a stream comes up that its beginning does not name" in message for message in messages)
