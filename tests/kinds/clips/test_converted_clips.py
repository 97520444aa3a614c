"""Clips of a converted set are those of its source, bit for bit, where videos were kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

av = pytest.importorskip("av")

from video_files import KINDS, pictures, write_video, x264  # noqa: E402

import datapipe as dp  # noqa: E402
from converters import ConvertOptions, convert  # noqa: E402

FIELDS = ["video", "label", "is_pad", "times", "id"]


def batches_of(source: Path, *, shuffle: bool, **options: Any) -> list[dict[str, Any]]:
    data = dp.Clips(source, **{"frames": 4, "stride": 2, "step": 3} | options)
    transform = [dp.transforms.RandomResizedCrop(32)]
    return list(dp.DataLoader(data, 4, shuffle=shuffle, seed=1, num_workers=2, transform=transform))


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], names: list[str]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for name in names:
            assert np.array_equal(one[name].numpy(), other[name].numpy()), name


@pytest.mark.daily(2)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("per_visit", [1, 3])
def test_clips_of_whole_videos(tmp_path: Path, per_visit: int, shuffle: bool) -> None:
    for label, name in enumerate(("h264-open.mkv", "h264-irregular.mp4", "h264-rotated.mp4", "vp9.webm")):
        (tmp_path / "in" / f"class{label % 2}").mkdir(parents=True, exist_ok=True)
        KINDS[name](tmp_path / "in" / f"class{label % 2}" / name)
    convert(ConvertOptions(tmp_path / "in", tmp_path / "out", num_workers=1, shard_nbytes=20_000))
    options: dict[str, Any] = {"per_visit": per_visit, "fields": FIELDS}
    ours, theirs = (batches_of(tmp_path / name, shuffle=shuffle, **options) for name in ("out", "in"))
    assert_same(ours, theirs, FIELDS)


@pytest.mark.parametrize("fps", [None, 10.0])
def test_clips_of_parts(tmp_path: Path, fps: float | None) -> None:
    for number in range(2):
        frames = pictures(50, 96, 64, number)
        write_video(tmp_path / f"{number}.mp4", frames=frames, options=x264("bframes=3:open-gop=1"))
    rows = ("0.mp4,0.2,1.3,a", "1.mp4,0.5,0.9,b", "0.mp4,1.1,,b", "1.mp4,0,1.5,a")
    (tmp_path / "parts.csv").write_text("\n".join(["path,start,end,label", *rows]))
    convert(ConvertOptions(tmp_path / "parts.csv", tmp_path / "out", num_workers=1))
    options: dict[str, Any] = {"per_visit": 3, "fields": FIELDS, "fps": fps, "stride": 1}
    ours, theirs = (batches_of(tmp_path / name, shuffle=False, **options) for name in ("out", "parts.csv"))
    assert len(ours) > 1
    assert_same(ours, theirs, ["video", "label", "is_pad", "id"])


def test_small_videos_give_as_many_clips(tmp_path: Path) -> None:
    write_video(tmp_path / "0.mp4", options=x264("bframes=3"))
    convert(ConvertOptions(tmp_path / "0.mp4", tmp_path / "out", num_workers=1, video_size=48))
    ours, theirs = (batches_of(tmp_path / name, shuffle=False, fields=FIELDS[2:]) for name in ("out", "0.mp4"))
    assert_same(ours, theirs, ["times", "is_pad", "id"])
    assert dp.Clips(tmp_path / "out").index.cameras[0].size == (48, 72)
