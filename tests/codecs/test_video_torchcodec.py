"""Frames, times and pixels are those of torchcodec, where that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av")
torchcodec = pytest.importorskip("torchcodec", exc_type=ImportError)

from video_files import KINDS  # noqa: E402

from datapipe.codecs.video.conversion import FrameConverter, fill_frames  # noqa: E402
from datapipe.codecs.video.decoding import VideoDecoder  # noqa: E402
from datapipe.opening.videos.reading import read_track  # noqa: E402

REFUSED = {"h264-size-change.mp4", "mpeg4.avi"}  # by torchcodec
OTHER_TIMES = {"h264.avi"}  # FFmpeg 5 begins at 0


@pytest.mark.parametrize("name", [name for name in KINDS if name not in REFUSED])
def test_pixels_and_times_are_those_of_torchcodec(name: str, tmp_path: Path) -> None:
    path = KINDS[name](tmp_path / name)
    data = path.read_bytes()
    track = read_track(lambda offset, size: data[offset : offset + size], len(data), str(path))
    theirs = torchcodec.decoders.VideoDecoder(str(path)).get_frames_in_range(0, len(track))
    out = np.zeros((len(track), *track.coding.shown_size, 3), np.uint8)
    failed = fill_frames(
        VideoDecoder(),
        FrameConverter(),
        track,
        lambda offset, size: data[offset : offset + size],
        np.arange(len(track)),
        out,
    )
    assert failed == []
    assert np.array_equal(out, theirs.data.permute(0, 2, 3, 1).numpy())
    assert name in OTHER_TIMES or np.allclose(track.times, theirs.pts_seconds.numpy())


@pytest.mark.parametrize("name", ["h264.mp4", "h264-odd.mp4", "h264-10bit.mp4", "h264-rotated.mp4", "av1.mp4", "hevc-hdr.mp4"])
def test_resized_pixels_are_within_one_of_torchcodec(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)  # torchcodec imports it if it is there, also if it does not fit torch
    path = KINDS[name](tmp_path / name)
    data = path.read_bytes()
    track = read_track(lambda offset, size: data[offset : offset + size], len(data), str(path))
    decoder = torchcodec.decoders.VideoDecoder(str(path), transforms=[torchcodec.transforms.Resize((50, 70))])
    theirs = decoder.get_frames_in_range(0, len(track)).data.permute(0, 2, 3, 1).numpy()
    out = np.zeros((len(track), 50, 70, 3), np.uint8)
    frames = np.arange(len(track))
    fill_frames(VideoDecoder(), FrameConverter(), track, lambda offset, size: data[offset : offset + size], frames, out)
    assert int(np.abs(out.astype(int) - theirs).max()) <= 1
