"""Frames at random access are those of sequential decoding, bit for bit; what does not decode is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

av = pytest.importorskip("av")

from video_files import KINDS, decoded_in_order, opened, pictures, planes, remux, same, write_video, x264  # noqa: E402

from datapipe.codecs.video import decoding  # noqa: E402
from datapipe.codecs.video.conversion import FrameConverter, fill_frames  # noqa: E402
from datapipe.codecs.video.decoding import VideoDecoder  # noqa: E402
from datapipe.codecs.video.nal_units import is_never_referenced  # noqa: E402
from datapipe.codecs.video.runs import runs_of  # noqa: E402
from datapipe.codecs.video.track import VideoTrack  # noqa: E402
from datapipe.errors import DecodeError  # noqa: E402
from datapipe.opening.videos.presentation import track_of  # noqa: E402

DAMAGED_KINDS = ("h264.mp4", "h264-open.mp4", "hevc.mp4", "av1.mp4", "vp9.webm", "mpeg4.mp4")


def wanted(*frames: int) -> NDArray[np.int64]:
    return np.array(frames, np.int64)


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", KINDS)
def test_random_access_equals_sequential_decoding(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    track, read = opened(path)
    expected = [planes(frame) for frame in decoded_in_order(path)]
    rng = np.random.default_rng(len(name))
    decoders = [VideoDecoder(), VideoDecoder(skips=False)]
    shuffled = rng.permutation(len(track))
    requests = [[number] for number in shuffled.tolist()]  # every frame alone, in random order
    requests += [np.sort(part).tolist() for size in (2, 5, 13) for part in np.array_split(shuffled, len(shuffled) // size)]
    requests.append(list(range(len(track))))
    for turn, request in enumerate(requests):
        found = dict(decoders[turn % 3 == 0].decode(track, read, wanted(*request)))
        assert sorted(found) == request
        for number, frame in found.items():
            assert not isinstance(frame, DecodeError), frame
            assert same(frame, expected[number]), number


@pytest.mark.parametrize("ending", [".mp4", ".mkv"])
@pytest.mark.parametrize("name", ["h264.mp4", "h264-open.mp4", "hevc-open.mp4", "hevc-radl.mp4"])
def test_videos_that_begin_within_a_group(name: str, ending: str, tmp_path: Path) -> None:
    """Frames before the first key packet, and the leading frames of a first group that is open, are not presented."""
    whole = KINDS[name](tmp_path / name)
    key = int(opened(whole)[0].group_packet[1])
    for first in (3, key):
        path = remux(whole, tmp_path / f"cut-{first}{ending}", first=first)
        track, read = opened(path)
        expected = decoded_in_order(path)
        assert track.frame_pts.tolist() == [frame.pts for frame in expected]
        for number, frame in VideoDecoder().decode(track, read, np.arange(len(track))):
            assert same(frame, planes(expected[number]))


def test_empty_packets_are_left_out(tmp_path: Path) -> None:
    """To a decoder they would be the end of the video."""
    path = KINDS["h264.mp4"](tmp_path / "a.mp4")
    track, read = opened(path)
    expected = [planes(frame) for frame in decoded_in_order(path)]
    packets = track.packets
    empty = np.array([8, 15, 20])
    empty = empty[[is_never_referenced("h264", read(int(packets.offset[one]), int(packets.size[one])), 4) for one in empty]]
    assert len(empty)
    size = packets.size.copy()
    size[empty] = 0
    made = track_of(track.coding, track.time_base, dataclasses.replace(packets, size=size), read)
    kept = np.flatnonzero(~np.isin(track.frame_packet, empty))
    assert made.frame_packet.tolist() == track.frame_packet[kept].tolist()
    for number, frame in VideoDecoder(skips=False).decode(made, read, np.arange(len(made))):
        assert same(frame, expected[kept[number]])


def test_one_decoder_serves_many_videos_in_turn(tmp_path: Path) -> None:
    names = ["h264.mp4", "hevc-open.mp4", "vp9.webm", "h264-444.mp4", "h264-size-change.mp4", "av1.mp4", "h264-odd.mp4"]
    paths = [KINDS[name](tmp_path / name) for name in names]
    videos = [(*opened(path), [planes(frame) for frame in decoded_in_order(path)]) for path in paths]
    decoder, rng = VideoDecoder(), np.random.default_rng(0)
    for _ in range(40):
        track, read, expected = videos[rng.integers(len(videos))]
        number = int(rng.integers(len(track)))
        assert same(dict(decoder.decode(track, read, wanted(number)))[number], expected[number])


def test_threads_decode_side_by_side(tmp_path: Path) -> None:
    """Each has a decoder of its own; the track and what reads are shared."""
    path = KINDS["h264.mp4"](tmp_path / "a.mp4")
    track, read = opened(path)
    expected = [planes(frame) for frame in decoded_in_order(path)]

    def decoded(seed: int) -> bool:
        decoder, rng = VideoDecoder(), np.random.default_rng(seed)
        requests = [np.sort(rng.choice(40, 5, replace=False)) for _ in range(20)]
        found = [pair for request in requests for pair in decoder.decode(track, read, request)]
        return len(found) == 100 and all(same(frame, expected[number]) for number, frame in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decoded, range(8)))


@pytest.mark.parametrize("name", ["h264.mp4", "hevc.mp4", "mpeg4.mp4"])
def test_packets_that_nobody_needs_are_left_out(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    track, read = opened(KINDS[name](tmp_path / name))
    given: list[int] = []
    whole = VideoDecoder._decoded

    def noted(self: VideoDecoder, context: Any, number: int, data: Any) -> list[Any]:
        given.append(number)
        return whole(self, context, number, data)

    monkeypatch.setattr(VideoDecoder, "_decoded", noted)
    number = int(track.group_frame[2]) - 1  # the last frame of the second group
    counts = []
    for decoder in (VideoDecoder(), VideoDecoder(skips=False)):
        assert [frame for frame, _ in decoder.decode(track, read, wanted(number))] == [number]
        assert len(given) == len(set(given))
        counts.append(len(given))
        given.clear()
    assert counts[0] < 0.8 * counts[1]


def test_windows_of_a_group_are_decoded_once(tmp_path: Path) -> None:
    track, _ = opened(KINDS["h264-open.mp4"](tmp_path / "a.mp4"))
    for frames in ([0, 3, 6, 9], [11, 12, 13], list(range(len(track)))):
        runs = runs_of(track, wanted(*frames))
        numbers = [number for run in runs for number in range(run.first, run.last + 1)]
        assert len(numbers) == len(set(numbers))
    assert len(runs_of(track, wanted(2, 30))) == 2


def test_few_reads(tmp_path: Path) -> None:
    path = KINDS["h264-audio.mp4"](tmp_path / "a.mp4")
    track, read = opened(path)
    reads: list[tuple[int, int]] = []

    def noted(offset: int, size: int) -> bytes:
        reads.append((offset, size))
        return read(offset, size)

    list(VideoDecoder().decode(track, noted, np.arange(12)))
    assert len(reads) == 1  # sound lies between the packets
    reads.clear()
    list(VideoDecoder().decode(track, noted, wanted(1, 38)))
    assert len(reads) == 2
    assert sum(size for _, size in reads) < path.stat().st_size


def test_clips_are_filled_with_repeats_in_any_order(tmp_path: Path) -> None:
    path = KINDS["h264.mp4"](tmp_path / "a.mp4")
    track, read = opened(path)
    frames = wanted(7, 3, 3, 39, 0, 7, 12)
    out = np.zeros((7, 64, 96, 3), np.uint8)
    assert fill_frames(VideoDecoder(), FrameConverter(), track, read, frames, out) == []
    expected = [frame.to_ndarray(format="rgb24") for frame in decoded_in_order(path)]
    assert all(np.array_equal(out[place], expected[number]) for place, number in enumerate(frames.tolist()))


def test_frames_that_do_not_exist_are_named(tmp_path: Path) -> None:
    track, read = opened(KINDS["h264.mp4"](tmp_path / "a.mp4"))
    out = np.zeros((4, 64, 96, 3), np.uint8)
    failed = fill_frames(VideoDecoder(), FrameConverter(), track, read, wanted(5, 40, -1, 39), out)
    assert [(place, str(error)) for place, error in failed] == [
        (1, "frame 40 does not exist: the video has 40"),
        (2, "frame -1 does not exist: the video has 40"),
    ]
    assert out[0].any()
    assert out[3].any()


def zeros(data: bytearray, start: int, size: int) -> None:
    data[start + size // 3 : start + size] = bytes(size - size // 3)


def noise(data: bytearray, start: int, size: int) -> None:
    data[start + 9 : start + size] = np.random.default_rng(start).bytes(size - 9)


@pytest.mark.parametrize(("name", "damage"), [("h264.mp4", zeros), ("h264.mp4", noise), ("hevc.mp4", noise)])
def test_damaged_packets_are_named_and_other_frames_are_right(
    name: str, damage: Callable[[bytearray, int, int], None], tmp_path: Path
) -> None:
    path = KINDS[name](tmp_path / name)
    track, _ = opened(path)
    expected = [planes(frame) for frame in decoded_in_order(path)]
    packet = int(track.group_packet[1])  # of the key frame of the second group
    data = bytearray(path.read_bytes())
    damage(data, int(track.packets.offset[packet]), int(track.packets.size[packet]))
    held = bytes(data)
    decoder = VideoDecoder()
    for _ in range(2):  # the decoder serves on
        found = dict(decoder.decode(track, lambda offset, size: held[offset : offset + size], np.arange(len(track))))
        assert sorted(found) == list(range(len(track)))
        for number, frame in found.items():
            if track.group_frame[1] <= number < track.group_frame[2]:
                assert isinstance(frame, DecodeError)
                assert str(frame).startswith(f"frame {number} (at {track.times[number]:.3f} s) does not decode: packet {packet}")
            else:
                assert same(frame, expected[number])


@pytest.mark.parametrize("name", DAMAGED_KINDS)
def test_damage_in_one_group_leaves_the_others_right(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    track, _ = opened(path)
    expected = [planes(frame) for frame in decoded_in_order(path)]
    data = bytearray(path.read_bytes())
    first, last = int(track.group_packet[1]) + 4, int(track.group_packet[2])
    for packet in range(first, last):
        noise(data, int(track.packets.offset[packet]), int(track.packets.size[packet]))
    held = bytes(data)
    decoder = VideoDecoder()
    for request in ([0, 38], [3], [39], list(range(40))):
        found = dict(decoder.decode(track, lambda offset, size: held[offset : offset + size], wanted(*request)))
        assert sorted(found) == request
        others = [number for number in request if not track.group_frame[1] <= number < track.group_frame[2]]
        assert all(same(found[number], expected[number]) for number in others)


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    path = KINDS["h264.mp4"](tmp_path / "a.mp4")
    track, _ = opened(path)
    packet = int(track.group_packet[2])
    held = path.read_bytes()[: int(track.packets.offset[packet]) + 5]
    found = dict(VideoDecoder().decode(track, lambda offset, size: held[offset : offset + size], np.arange(len(track))))
    assert [number for number, frame in found.items() if not isinstance(frame, DecodeError)] == list(range(24))
    assert str(found[30]).endswith(f"the file ends within packet {packet}")


def test_errors_of_reading_are_raised(tmp_path: Path) -> None:
    track, read = opened(KINDS["h264.mp4"](tmp_path / "a.mp4"))
    decoder = VideoDecoder()

    def broken(offset: int, size: int) -> bytes:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(decoder.decode(track, broken, wanted(3)))
    assert dict(decoder.decode(track, read, wanted(3))).keys() == {3}


def test_a_codec_that_pyav_does_not_decode_is_named(tmp_path: Path) -> None:
    track, read = opened(KINDS["h264.mp4"](tmp_path / "a.mp4"))
    unknown = dataclasses.replace(track, coding=dataclasses.replace(track.coding, codec="nothing"))
    found = dict(VideoDecoder().decode(unknown, read, wanted(3, 4)))
    assert sorted(found) == [3, 4]
    assert all(str(error).startswith("this PyAV has no decoder for nothing") for error in found.values())


@pytest.mark.parametrize(
    ("codec", "options", "seeds"),
    [
        ("libvpx", {}, range(40, 60)),
        pytest.param("libvpx", {}, range(200), marks=pytest.mark.nightly),
        pytest.param("mpeg4", {}, range(200), marks=pytest.mark.nightly),
        pytest.param("mpeg4", {"bf": "2"}, range(200, 400), marks=pytest.mark.nightly),
        pytest.param("libx264", {}, range(200), marks=pytest.mark.nightly),
    ],
)
def test_frames_do_not_depend_on_damaged_neighbours(codec: str, options: dict[str, str], seeds: range, tmp_path: Path) -> None:
    """What is decoded before by the same decoder: the same video with damage at the beginnings of packets, or whole."""
    path = write_video(tmp_path / "a.mkv", codec=codec, options=options)
    track, _ = opened(path)
    whole = path.read_bytes()
    expected = everything(VideoDecoder(), track, whole)
    assert not any(isinstance(frame, str) for frame in expected)
    for seed in seeds:
        random = np.random.default_rng(seed)
        damaged = bytearray(whole)
        packet = int(random.integers(len(track.packets)))
        offset, size = int(track.packets.offset[packet]), int(track.packets.size[packet])
        for _ in range(4):
            damaged[offset + int(random.integers(min(size, 24)))] ^= 1 << int(random.integers(8))
        alone, decoder = everything(VideoDecoder(), track, damaged), VideoDecoder()
        assert everything(decoder, track, damaged) == alone
        assert everything(decoder, track, whole) == expected, seed
        assert everything(decoder, track, damaged) == alone, seed


def everything(decoder: VideoDecoder, track: VideoTrack, data: bytes | bytearray) -> list[str | list[bytes]]:
    """The planes of each frame, or its error."""
    found = dict(decoder.decode(track, lambda place, num: bytes(data[place : place + num]), np.arange(len(track))))
    return [
        str(frame) if isinstance(frame, DecodeError) else [plane.tobytes() for plane in planes(frame)]
        for _, frame in sorted(found.items())
    ]


def test_contexts_are_kept_for_codings_that_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_MAX_CONTEXTS", 2)
    sizes = [(64, 48), (80, 48), (96, 48)]
    videos = [
        opened(write_video(tmp_path / f"{width}.mp4", frames=pictures(4, width, height), options=x264("bframes=0")))
        for width, height in sizes
    ]
    decoder = VideoDecoder()
    for track, read in videos * 2:
        frame = dict(decoder.decode(track, read, wanted(2)))[2]
        assert (frame.width, frame.height) == (track.coding.width, track.coding.height)
        assert len(decoder._contexts) <= 2
