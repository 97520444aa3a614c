"""Decode threads with a process each give the clips that threads alone give, and go on alone where there is no process."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

av = pytest.importorskip("av")

from process_requests import noted_requests  # noqa: E402
from test_lerobot_depth import with_depth  # noqa: E402
from test_lerobot_images import with_images  # noqa: E402
from video_files import pictures, write_video, x264  # noqa: E402

import datapipe as dp  # noqa: E402
from datapipe.errors import FormatError, MissingDataError  # noqa: E402
from datapipe.kinds.clips.decoding import ClipDecoder  # noqa: E402
from datapipe.kinds.clips.process_workers import IMPORTS  # noqa: E402

CROP = [dp.transforms.RandomResizedCrop(24), dp.transforms.RandomHorizontalFlip()]
DELTAS = {"observation.images.top": [-0.1, 0.0], "action": [0.0, 0.1]}
WINDOWS = {"frames": 4, "step": 2}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The requests that processes are asked."""
    yield from noted_requests(IMPORTS, monkeypatch)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed. One has a damaged packet."""
    root = tmp_path_factory.mktemp("videos")
    for number in range(4):
        write_video(root / f"{number}.mp4", frames=pictures(30, 48, 32, seed=number), options=x264("bframes=0:keyint=10"))
    data = bytearray((root / "2.mp4").read_bytes())
    place = data.index(b"mdat") + 2000
    data[place : place + 200] = bytes(200)
    (root / "2.mp4").write_bytes(data)
    return root


def batches(data: Any, monkeypatch: pytest.MonkeyPatch, where: str, **options: Any) -> list[dict[str, Any]]:
    """Those of two epochs."""
    monkeypatch.setenv("DATAPIPE_WORKERS", where)
    loader = dp.DataLoader(data, 8, shuffle=True, seed=1, num_workers=3, **options)
    return [batch for _ in range(2) for batch in loader]


def are_equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    return len(found) == len(expected) and all(
        one.keys() == other.keys()
        and all(one[name].equal(other[name]) if torch.is_tensor(one[name]) else one[name] == other[name] for name in one)
        for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("transform", [[], CROP], ids=["whole", "crops"])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("resize", ["exact", "fast"])
def test_batches_are_those_of_threads(
    videos: Path, resize: Any, on_error: str, transform: list[Any], monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    data = dp.Clips(videos, resize=resize, **WINDOWS)
    options: dict[str, Any] = {"transform": transform, "on_error": on_error}
    expected = batches(data, monkeypatch, "threads", **options)
    assert not asked
    assert are_equal(batches(data, monkeypatch, "processes", **options), expected)
    assert asked


@pytest.mark.nightly
def test_mixed_videos_and_depth_are_those_of_threads(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    mixed = dp.mix([dp.Clips([videos / "0.mp4", videos / "1.mp4"], **WINDOWS), dp.Clips([videos / "3.mp4"], **WINDOWS)])
    robots = dp.Clips(with_depth(tmp_path / "robots"), delta_timestamps=DELTAS)
    for data in (mixed, robots):
        expected = batches(data, monkeypatch, "threads", transform=CROP)
        assert are_equal(batches(data, monkeypatch, "processes", transform=CROP), expected)
        assert asked
        asked.clear()


def test_images_in_tables_stay_with_threads(tmp_path: Path, asked: list[Any]) -> None:
    data = dp.Clips(with_images(tmp_path / "robots"), delta_timestamps={"observation.images.front": [0.0]})
    loader = dp.DataLoader(data, 8, num_workers=2)
    list(loader)
    assert not asked
    assert "each with a process" not in str(dp.explain(loader))


class Darker:
    """An operation on pixels of a user's own."""

    def output_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def draw(self, draws: Any, operation: int, size: tuple[int, int]) -> Any:
        return ()

    def apply(self, images: torch.Tensor, params: Any) -> torch.Tensor:
        return images // 2


def test_what_is_the_user_s_stays_with_threads(videos: Path, asked: list[Any]) -> None:
    """It might change, and a process would not see it."""
    data = dp.Clips([videos / "0.mp4"], **WINDOWS)
    loader = dp.DataLoader(data, 8, num_workers=2, transform=[dp.transforms.CenterCrop(16), Darker()])
    assert max(int(batch["video"].max()) for batch in loader) <= 127
    assert not asked
    assert "each with a process" not in str(dp.explain(loader))


def test_explain_says_that_there_are_processes(videos: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    loader = dp.DataLoader(dp.Clips(videos, **WINDOWS), 8, num_workers=2)
    assert "PyAV on 2 threads, each with a process" in str(dp.explain(loader))
    monkeypatch.setenv("DATAPIPE_WORKERS", "threads")
    assert "each with a process" not in str(dp.explain(loader))


def test_a_file_that_goes_is_named(videos: Path, tmp_path: Path, asked: list[Any]) -> None:
    file = tmp_path / "a.mp4"
    file.write_bytes((videos / "0.mp4").read_bytes())
    loader = dp.DataLoader(dp.Clips([file], **WINDOWS), 4, num_workers=2)
    len(loader)
    file.unlink()
    with pytest.raises(MissingDataError, match=r"a\.mp4"):
        list(loader)
    assert asked


def test_an_index_is_sent_as_the_place_of_its_file(videos: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.mp4"
    file.write_bytes((videos / "0.mp4").read_bytes())
    index = dp.DataLoader(dp.Clips([file], **WINDOWS), 4)._passes.kind.index.videos
    found = pickle.loads(pickle.dumps(index))
    assert (len(found), found.fingerprint, found.source(0)) == (1, index.fingerprint, index.source(0))
    file.write_bytes((videos / "1.mp4").read_bytes())
    dp.DataLoader(dp.Clips([file], **WINDOWS), 4)
    with pytest.raises(FormatError, match="made anew meanwhile"):
        pickle.loads(pickle.dumps(index))


def test_where_the_index_was_made_anew_threads_go_on(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.mp4"
    file.write_bytes((videos / "0.mp4").read_bytes())
    monkeypatch.setenv("DATAPIPE_WORKERS", "threads")
    expected = list(dp.DataLoader(dp.Clips([file], **WINDOWS), 4, num_workers=2))
    monkeypatch.setenv("DATAPIPE_WORKERS", "processes")
    loader = dp.DataLoader(dp.Clips([file], **WINDOWS), 4, num_workers=2)
    stamp = file.stat()
    file.touch()
    dp.DataLoader(dp.Clips([file], **WINDOWS), 4)
    assert file.stat().st_mtime_ns != stamp.st_mtime_ns
    assert are_equal(list(loader), expected)
    assert not asked
    assert "a thread does its work" in caplog.text
    gc.collect()


def test_no_thread_waits_for_what_another_decodes(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a batch are of one visit: one thread decodes it, and the others the next ones meanwhile."""
    together = threading.Barrier(4)
    decode, times = ClipDecoder.decode, iter(range(4))

    def decoded(self: ClipDecoder, *arguments: Any) -> Any:
        if next(times, None) is not None:
            together.wait(30)
        return decode(self, *arguments)

    expected = list(dp.DataLoader(dp.Clips(videos, **WINDOWS), 4, num_workers=0, on_error="skip"))
    monkeypatch.setattr(ClipDecoder, "decode", decoded)
    found = list(dp.DataLoader(dp.Clips(videos, **WINDOWS), 4, num_workers=4, on_error="skip"))
    assert are_equal(found, expected)
    assert not together.broken
