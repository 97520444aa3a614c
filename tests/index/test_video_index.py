"""The index of many videos is kept, and made again for those that have changed."""

from __future__ import annotations

import itertools
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av")

from video_files import KINDS  # noqa: E402

from datapipe.codecs.video.track import VideoTrack  # noqa: E402
from datapipe.errors import FormatError, MissingDataError  # noqa: E402
from datapipe.index import videos as index_of_videos  # noqa: E402
from datapipe.index.media import MediaSource  # noqa: E402
from datapipe.index.videos import VideoIndex, write_videos  # noqa: E402
from datapipe.opening.videos import indexing  # noqa: E402
from datapipe.opening.videos.indexing import look_at, open_videos  # noqa: E402

NAMES = ("h264-open.mp4", "hevc-radl.mp4", "h264-cut.mp4", "vp9.webm", "h264-rotated.mp4", "h264-size-change.mp4", "depth.mkv")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def videos(tmp_path: Path) -> list[MediaSource]:
    (tmp_path / "videos").mkdir()
    return [MediaSource(str(KINDS[name](tmp_path / "videos" / name))) for name in NAMES]


def same(one: VideoTrack, other: VideoTrack) -> bool:
    columns = ("pts", "dts", "offset", "size", "is_key")
    places = ("frame_packet", "group_packet", "group_frame")
    return (
        (one.coding, one.time_base, one.shift) == (other.coding, other.time_base, other.shift)
        and all(np.array_equal(getattr(one.packets, name), getattr(other.packets, name)) for name in columns)
        and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in places)
    )


def test_tracks_come_back_as_they_were(videos: list[MediaSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_of_videos, "_MAX_ROWS", 3)  # several batches
    index = open_videos(videos, where=str(tmp_path / "videos"))
    assert len(index) == len(videos)
    for number, source in enumerate(videos):
        track = look_at(source).track
        assert track is not None
        assert same(index.track(number), track)
        assert index.num_frames[number] == len(track)
        assert index.source(number) == source._replace(nbytes=os.path.getsize(source.path))


def test_only_changed_videos_are_looked_at_again(
    videos: list[MediaSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def noted(source: MediaSource) -> object:
        looked.append(source.path)
        return look_at(source)

    monkeypatch.setattr(indexing, "look_at", noted)
    first = open_videos(videos, where=str(tmp_path))
    assert sorted(looked) == sorted(source.path for source in videos)
    looked.clear()
    assert open_videos(videos, where=str(tmp_path)).fingerprint == first.fingerprint
    assert looked == []
    KINDS["h264.mp4"](Path(videos[1].path))
    changed = open_videos(videos, where=str(tmp_path))
    assert looked == [videos[1].path]
    assert changed.fingerprint != first.fingerprint
    assert changed.track(1).coding.codec == "h264"
    assert same(changed.track(0), first.track(0))


def test_videos_that_cannot_be_decoded_stay_with_the_reason(videos: list[MediaSource], tmp_path: Path) -> None:
    Path(videos[2].path).write_bytes(b"no video, but some text")
    os.unlink(videos[4].path)
    index = open_videos(videos, where=str(tmp_path))
    assert (index.num_frames > 0).tolist() == [number not in (2, 4) for number in range(len(videos))]
    assert index.problem(2).startswith(f"{videos[2].path}: no video file")
    with pytest.raises(FormatError, match="cannot be read"):
        index.track(4)
    KINDS["h264.mp4"](Path(videos[4].path))  # what could not be read is tried again
    assert len(open_videos(videos, where=str(tmp_path)).track(4)) == 40


def test_a_range_of_a_file_is_a_video(videos: list[MediaSource], tmp_path: Path) -> None:
    parts = [Path(source.path).read_bytes() for source in videos]
    joined = tmp_path / "joined.tar"
    joined.write_bytes(b"".join(bytes(512) + part for part in parts))
    starts = np.cumsum([512 + len(part) for part in parts]) - [len(part) for part in parts]
    ranges = [MediaSource(str(joined), int(start), len(part)) for start, part in zip(starts, parts, strict=True)]
    index = open_videos(ranges, where=str(joined))
    for number, source in enumerate(videos):
        track = look_at(source).track
        assert track is not None
        assert same(index.track(number), track)  # offsets are those within the range


def test_an_index_is_mapped_and_not_read(videos: list[MediaSource], tmp_path: Path) -> None:
    entries = [look_at(source) for source in videos] * 100
    path = tmp_path / "videos.arrow"
    with path.open("wb") as file:
        write_videos(file, itertools.chain.from_iterable(itertools.repeat(entries, 30)))
    tracemalloc.start()
    try:
        index = VideoIndex(path, "")
        assert len(index) == 30 * len(entries)
        assert len(index.track(len(index) - 1)) == 40
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 20 << 20
    assert peak < 1 << 20


def test_fingerprints_do_not_depend_on_the_place(videos: list[MediaSource], tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    os.rename(tmp_path / "videos", moved)
    there = [MediaSource(str(moved / name)) for name in NAMES]
    before = open_videos(there, where=str(moved)).fingerprint
    os.rename(moved, tmp_path / "videos")
    assert open_videos(videos, where=str(tmp_path / "videos")).fingerprint == before
    assert open_videos(videos[::-1], where=str(tmp_path / "videos")).fingerprint != before


def test_damaged_indexes_are_refused_and_made_again(videos: list[MediaSource], tmp_path: Path) -> None:
    open_videos(videos, where=str(tmp_path))
    (path,) = (tmp_path / "cache").rglob("videos.arrow")
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match="made again"):
            VideoIndex(path, "")
        assert len(open_videos(videos, where=str(tmp_path))) == len(videos)


def test_no_videos_at_all(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="holds no videos"):
        open_videos([], where=str(tmp_path))
