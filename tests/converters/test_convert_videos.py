"""Videos become members of tars that show the same frames at the same times, whole or in part; bad ones say why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

av = pytest.importorskip("av")

from reading import converted, field_of, kinds_of, labels_of, skipping, sources_of  # noqa: E402
from source_trees import put  # noqa: E402
from trees import contents, encoded_image, run_cli  # noqa: E402
from video_files import KINDS, decoded_in_order, pictures, remux, write_video, x264  # noqa: E402

from converters import Check, ConvertOptions, OnError, convert, recognise  # noqa: E402
from converters.verify import verify  # noqa: E402
from datapipe.codecs.video.conversion import FrameConverter, fill_frames  # noqa: E402
from datapipe.codecs.video.decoding import VideoDecoder  # noqa: E402
from datapipe.codecs.video.track import VideoTrack  # noqa: E402
from datapipe.errors import DecodeError, FormatError, OptionError  # noqa: E402
from datapipe.index.manifest import read_manifest  # noqa: E402
from datapipe.opening.samples import open_index  # noqa: E402
from datapipe.opening.videos.reading import read_track  # noqa: E402

NOT_KEPT: dict[str, str] = {}  # kinds that an mp4 cannot hold as they are, and why


def track_of(data: bytes) -> VideoTrack:
    return read_track(lambda offset, size: data[offset : offset + size], len(data), "video")


def frames_of(data: bytes) -> NDArray[np.uint8]:
    """The frames of a video as RGB, each decoded once."""
    track = track_of(data)
    height, width = track.coding.shown_size
    out = np.zeros((len(track), height, width, 3), np.uint8)
    read = lambda offset, size: data[offset : offset + size]  # noqa: E731
    assert fill_frames(VideoDecoder(), FrameConverter(), track, read, np.arange(len(out)), out) == []
    return out


def samples_of(frame: Any) -> list[bytes]:
    """The samples of each plane of a frame, without what pads its lines."""
    nbytes = 2 if max(one.bits for one in frame.format.components) > 8 else 1
    lines = [np.frombuffer(one, np.uint8).reshape(-1, one.line_size)[: one.height, : nbytes * one.width] for one in frame.planes]
    return [one.tobytes() for one in lines]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], dict[str, str]]:
    """A video of every kind, what is kept of each, and why some are not. Not to be changed."""
    root = tmp_path_factory.mktemp("kinds")
    for name, write in KINDS.items():
        (root / "made").mkdir(exist_ok=True)
        (root / "videos").mkdir(exist_ok=True)
        write(root / "made" / name).rename(root / "videos" / name)
    bad = skipping(root / "videos", root / "out", check=Check.DECODE)
    return root / "videos", dict(zip(sources_of(root / "out"), field_of(root / "out", "mp4"), strict=True)), bad


@pytest.mark.promise("form: videos")
@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in KINDS if name not in NOT_KEPT])
def test_kept_videos_show_the_same_frames_at_the_same_times(
    name: str, kinds: tuple[Path, dict[str, bytes], dict[str, str]], tmp_path: Path
) -> None:
    source, kept, bad = kinds
    assert name not in bad, bad[name]
    before, after = (source / name).read_bytes(), kept[name]
    assert track_of(after).times.tolist() == track_of(before).times.tolist()
    assert track_of(after).coding.shown_size == track_of(before).coding.shown_size
    if not name.startswith("depth"):
        assert (frames_of(after) == frames_of(before)).all()
    (tmp_path / "kept.mp4").write_bytes(after)  # as a player has it
    shown = decoded_in_order(tmp_path / "kept.mp4")
    assert [frame.time for frame in shown] == track_of(before).times.tolist()
    for ours, theirs in zip(shown, decoded_in_order(source / name), strict=True):
        assert samples_of(ours) == samples_of(theirs)
        assert ours.rotation == theirs.rotation


def test_the_table_of_contents_comes_first_and_nothing_names_a_version(
    kinds: tuple[Path, dict[str, bytes], dict[str, str]],
) -> None:
    _, kept, _ = kinds
    for name, data in kept.items():
        assert data.index(b"moov") < data.index(b"mdat"), name
        assert b"Lavf" not in data, name


@pytest.mark.promise("form: videos")
@pytest.mark.parametrize(
    "name",
    ["h264.mp4", "h264-open.mp4", "h264-open.mkv", "h264-irregular.mp4", "hevc-open.mp4", "vp9.webm", "h264-late.mp4"],
)
def test_parts_show_their_frames_and_no_others(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    whole, track = frames_of(path.read_bytes()), track_of(path.read_bytes())
    times = track.times
    rows = [(0.0, times[5]), (times[7], times[20]), (times[13], times[14]), (times[25], ""), (0.0, ""), (times[-1], 99)]
    expected = [range(5), range(7, 20), range(13, 14), range(25, 40), range(40), range(39, 40)]
    parts = put(tmp_path / "parts.csv", "path,start,end\n" + "".join(f"{name},{start},{end}\n" for start, end in rows))
    out = converted(parts, tmp_path / "out", check=Check.DECODE)
    stored = field_of(out, "mp4")
    for number, (data, frames) in enumerate(zip(stored, expected, strict=True)):
        assert (frames_of(data) == whole[frames.start : frames.stop]).all()
        found = track_of(data)
        shown = times[frames.start : frames.stop] - (0 if number == 4 else times[frames.start])
        assert found.times == pytest.approx(shown, abs=1e-9)
        player = tmp_path / f"{number}.mp4"
        player.write_bytes(data)
        assert [frame.time for frame in decoded_in_order(player)] == pytest.approx(shown, abs=1e-6)
    assert len(stored[2]) < len(stored[1]) < len(stored[4])
    assert sources_of(out)[1] == f"{name}, {times[7]:g} to {times[20]:g} s"
    assert verify(out).problems == ()


def test_folders_of_classes_and_lists_give_labels(tmp_path: Path) -> None:
    for number, name in enumerate(("run/1.mp4", "run/deep/2.mp4", "walk/0.mov")):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        write_video(tmp_path / "in" / name, frames=pictures(6, 48, 32, number))
    out = converted(tmp_path / "in", tmp_path / "out")
    assert kinds_of(out) == {"mp4": "bytes", "label": "label"}
    assert (sources_of(out), labels_of(out)) == (["run/1.mp4", "run/deep/2.mp4", "walk/0.mov"], [0, 0, 1])
    assert read_manifest(out).classes == ("run", "walk")
    parts = "path,label\nin/walk/0.mov,b\nin/run/1.mp4,a\nin/run/1.mp4,b\n"
    listed = converted(put(tmp_path / "list.csv", parts), tmp_path / "listed")
    assert (labels_of(listed), read_manifest(listed).classes) == ([1, 0, 1], ("a", "b"))
    rooted = put(tmp_path / "lists" / "list.jsonl", '{"video": "run/1.mp4", "target": 7}\n{"video": "walk/0.mov", "target": 3}\n')
    numbered = converted(rooted, tmp_path / "numbered", root=tmp_path / "in")
    assert (labels_of(numbered), read_manifest(numbered).classes) == ([7, 3], None)
    again = converted(out, tmp_path / "again", seed=3)
    assert field_of(again, "mp4") == field_of(out, "mp4")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("in", "videos in it"),
        ("in/0.mp4", "its name ends with .mp4"),
        ("list.csv", "it lists videos"),
        ("in/*.mp4", "by the names"),
    ],
)
def test_videos_are_recognised(tmp_path: Path, path: str, why: str) -> None:
    for number in range(2):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.mp4").touch()
    put(tmp_path / "list.csv", "file_name,start\nin/0.mp4,1\n")
    found = recognise(ConvertOptions(tmp_path / path, tmp_path / "out"))
    assert found.form == "videos"
    assert why in found.why


@pytest.mark.nightly
def test_the_same_bytes_on_any_number_of_workers_and_after_a_run_that_ended_early(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(6):
        write_video(tmp_path / "in" / f"{number}.mp4", frames=pictures(12, 64, 48, number), options=x264("bframes=2"))
    options: dict[str, Any] = {"shard_nbytes": 20_000, "video_size": 32, "video_keyframes": 4}
    one = converted(tmp_path / "in", tmp_path / "one", **options)
    assert len(list(one.glob("*.tar"))) > 1
    assert contents(converted(tmp_path / "in", tmp_path / "two", num_workers=2, **options)) == contents(one)

    class StoppedError(Exception):
        pass

    def stop(advance: Any) -> None:
        if len(list((tmp_path / "again" / ".building" / "done").glob("*"))) >= 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        convert(ConvertOptions(tmp_path / "in", tmp_path / "again", num_workers=1, **options), stop)
    report = convert(ConvertOptions(tmp_path / "in", tmp_path / "again", num_workers=1, **options))
    assert report.num_resumed >= 1
    assert contents(tmp_path / "again") == contents(one)
    with pytest.raises(OptionError, match="video_size"):
        convert(ConvertOptions(tmp_path / "in", tmp_path / "one", num_workers=1, shard_nbytes=20_000))


def test_bad_videos_are_left_out_with_the_reason(tmp_path: Path) -> None:
    good = write_video(tmp_path / "good.mp4", options=x264("bframes=2")).read_bytes()
    folder = tmp_path / "in"
    put(folder / "good.mp4", good)
    put(folder / "cut.mp4", good[: len(good) // 2])
    put(folder / "text.mp4", b"no video at all, but a text")
    put(folder / "empty.mkv", b"")
    damaged = bytearray(good)
    place = damaged.index(b"mdat") + len(good) // 3
    damaged[place : place + 400] = bytes(400)
    put(folder / "damaged.mp4", bytes(damaged))
    reasons = skipping(folder, tmp_path / "out", check=Check.DECODE, on_error=OnError.QUARANTINE)
    assert set(reasons) == {"cut.mp4", "text.mp4", "empty.mkv", "damaged.mp4"}
    assert "moov" in reasons["cut.mp4"]
    assert "no video file" in reasons["text.mp4"]
    assert "does not decode" in reasons["damaged.mp4"]
    assert (tmp_path / "out" / "quarantine" / "cut.mp4").read_bytes() == good[: len(good) // 2]
    assert verify(tmp_path / "out").problems == ()
    with pytest.raises(DecodeError, match=r"cut\.mp4: bad sample: it has no table of contents \(moov\)"):
        converted(folder / "cut.mp4", tmp_path / "no")
    encoded = skipping(folder, tmp_path / "small", video_size=32)
    assert "does not decode" in encoded["damaged.mp4"]


def test_bad_parts_are_known_before_anything_is_written(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", options=x264("bframes=2"))
    put(tmp_path / "b.mp4", b"none")
    parts = put(tmp_path / "parts.csv", "path,start,end\na.mp4,0.2,0.4\na.mp4,7,8\nb.mp4,0,1\nc.mp4,0,1\n")
    with pytest.raises(
        DecodeError,
        match=r"3 of 4 samples cannot be read: .*7 to 8 s: .*no frame begins then, and its last one begins at 1\.300 s",
    ):
        converted(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    reasons = skipping(parts, tmp_path / "out")
    assert "no video file" in reasons["b.mp4, 0 to 1 s"]
    assert reasons["c.mp4"] == "no such file"
    assert len(field_of(tmp_path / "out", "mp4")) == 1


def test_a_video_without_a_place_in_mp4_says_how_to_convert_it(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", "wmv2", options={})
    with pytest.raises(DecodeError, match="wmv2 cannot be kept in an mp4; encode it again: --video-size"):
        converted(path, tmp_path / "out")
    encoded = converted(path, tmp_path / "encoded", video_keyframes=8)
    assert len(track_of(field_of(encoded, "mp4")[0])) == 40


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"to": "hdf5"}, "pass --to webdataset"),
        ({"to": "parquet"}, "pass --to webdataset"),
        ({"resize": "shorter:256"}, "--video-size 256"),
        ({"encode": "jpeg:90"}, "--video-size or --video-keyframes"),
        ({"fields": ["mp4=none"]}, "--field mp4=none"),
        ({"video_size": 255}, "even"),
        ({"video_size": 4}, "at least 16"),
        ({"video_keyframes": 0}, "at least 1"),
    ],
)
def test_options_that_do_not_fit_videos_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    flags = [f"--{name.replace('_', '-').removesuffix('s') if name == 'fields' else name.replace('_', '-')}" for name in options]
    values = [value[0] if isinstance(value, list) else str(value) for value in options.values()]
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "a.mp4", frames=pictures(4, 48, 32))
    target = [] if "to" in options else ["--to", "webdataset"]
    done = run_cli(
        "convert", tmp_path / "in", tmp_path / "out", *target, *[one for both in zip(flags, values, strict=True) for one in both]
    )
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_options_of_videos_are_refused_for_images(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a" / "0.jpg", encoded_image(0))
    with pytest.raises(OptionError, match=r"--video-size 64: the samples of .* have no videos; pass --resize"):
        converted(tmp_path / "in", tmp_path / "out", video_size=64)


def test_a_preview_says_what_would_be_made(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", frames=pictures(8, 48, 32))
    put(tmp_path / "parts.csv", "path,start,end,label\na.mp4,0,0.1,x\na.mp4,0.1,0.2,y\n")
    done = run_cli("convert", tmp_path / "parts.csv", tmp_path / "out", "--to", "webdataset", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert "recognised as videos (it lists videos; --from videos)" in done.stderr
    preview = json.loads(done.stdout)
    assert preview["fields"] == [["mp4", "bytes"], ["label", "label"]]
    assert [one["source"] for one in preview["sets"][0]["first"]].count("a.mp4, 0 to 0.1 s") == 1


# -- encoded again -----------------------------------------------------------------------------------


def psnr(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    error = np.square(one.astype(np.float64) - other).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


@pytest.mark.parametrize(
    "name",
    ["h264.mp4", "h264-open.mkv", "h264-irregular.mp4", "h264-rotated.mp4", "h264-full-range.mp4", "h264-10bit.mp4",
     "h264-444.mp4", "h264-odd.mp4", "h264-late.mp4", "h264-shorter.mp4", "h264-size-change.mp4", "mjpeg.mov", "vp9-odd.mp4"],
)  # fmt: skip
def test_encoded_videos_keep_frames_times_and_colours(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    out = converted(path, tmp_path / "out", video_keyframes=6)
    (data,) = field_of(out, "mp4")
    before, after = track_of(path.read_bytes()), track_of(data)
    assert after.times.tolist() == before.times.tolist()
    height, width = before.coding.shown_size
    assert after.coding.shown_size == (height - height % 2, width - width % 2)
    assert (after.coding.codec, after.coding.rotation, after.coding.pixel_format) == ("h264", 0, "yuv420p")
    assert after.group_frame.tolist() == [*range(0, len(after), 6)]
    rows, columns = after.coding.shown_size
    if name != "h264-size-change.mp4":
        assert psnr(frames_of(data), frames_of(path.read_bytes())[:, :rows, :columns]) > (24 if width % 2 else 27)


@pytest.mark.parametrize(
    ("size", "wanted", "stored"),
    [
        ((96, 64), 32, (32, 48)),
        ((64, 96), 32, (48, 32)),
        ((90, 64), 32, (32, 44)),
        ((96, 64), 64, (64, 96)),
        ((96, 64), 480, (64, 96)),
    ],
)
def test_the_shorter_side_gets_the_size_and_nothing_is_enlarged(
    tmp_path: Path, size: tuple[int, int], wanted: int, stored: tuple[int, int]
) -> None:
    path = write_video(tmp_path / "a.mp4", frames=pictures(20, *size))
    (data,) = field_of(converted(path, tmp_path / "out", video_size=wanted), "mp4")
    assert track_of(data).coding.shown_size == stored
    assert track_of(data).group_frame.tolist() == [0, 16]


def test_encoded_parts_show_their_frames(tmp_path: Path) -> None:
    path = KINDS["h264-open.mp4"](tmp_path / "h264-open.mp4")
    whole = frames_of(path.read_bytes())
    parts = put(tmp_path / "parts.csv", f"path,start,end\n{path.name},0.5,0.9\n{path.name},0,0.2\n")
    first, second = field_of(converted(parts, tmp_path / "out", video_keyframes=4), "mp4")
    assert psnr(frames_of(first), whole[15:27]) > 27
    assert psnr(frames_of(second), whole[:6]) > 27


def test_depth_is_kept_and_not_encoded(tmp_path: Path) -> None:
    path = KINDS["depth.mp4"](tmp_path / "depth.mp4")
    with pytest.raises(DecodeError, match="depth"):
        converted(path, tmp_path / "out", video_size=32)


def test_a_converted_set_is_encoded_again(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", options=x264("bframes=2"))
    kept = converted(path, tmp_path / "kept")
    direct = converted(path, tmp_path / "direct", video_size=32)
    again = converted(kept, tmp_path / "again", video_size=32)
    assert field_of(again, "mp4") == field_of(direct, "mp4")


def test_images_of_a_path_of_videos_are_refused_with_the_remedy(tmp_path: Path) -> None:
    write_video(tmp_path / "in" / "a.mp4" if (tmp_path / "in").mkdir() is None else tmp_path, frames=pictures(4, 48, 32))
    with pytest.raises(FormatError, match=re.escape("datapipe.Clips")):
        open_index(tmp_path / "in")


def test_times_before_an_edit_are_kept(tmp_path: Path) -> None:
    """A video whose first frame is shown late."""
    late = remux(write_video(tmp_path / "early.mp4", options=x264("bframes=2")), tmp_path / "late.mp4", shift_s=1.5)
    (data,) = field_of(converted(late, tmp_path / "out"), "mp4")
    assert track_of(data).times[0] == track_of(late.read_bytes()).times[0] == 1.5


def test_videos_without_times_of_their_own_and_joined_ones_get_some(tmp_path: Path) -> None:
    source = tmp_path / "videos"
    source.mkdir()
    write_video(source / "a.avi", options=x264("bframes=3"))
    stream = KINDS["h264.ts"](tmp_path / "b.ts")
    (source / "b.ts").write_bytes(2 * stream.read_bytes())
    out = converted(source, tmp_path / "out", check=Check.DECODE)
    for name, data in zip(sources_of(out), field_of(out, "mp4"), strict=True):
        assert (frames_of(data) == frames_of((source / name).read_bytes())).all(), name
        (tmp_path / "kept.mp4").write_bytes(data)  # as a player has it
        shown = decoded_in_order(tmp_path / "kept.mp4")
        expected = decoded_in_order(source / name)
        assert [samples_of(one) for one in shown] == [samples_of(one) for one in expected], name
        assert [frame.time for frame in shown] == pytest.approx(track_of(data).times, abs=1e-6)
