"""Clips that other machines decode: those of threads, of every codec, also where a video is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import Batches, equal
from decoders import Decoder

pytest.importorskip("av")
from video_files import write_video

import datapipe as dp
from datapipe import transforms as T
from datapipe.errors import OptionError
from datapipe.kinds.clips.decoding import ClipDecoder

CODECS = {"mjpeg": "mov", "h264": "mp4", "hevc": "mp4", "mpeg4": "mp4", "mpeg2video": "ts", "vp9": "webm"}
NUM_FRAMES = 40
CUT: dict[str, list[Any]] = {
    "whole": [],
    "cut": [T.RandomResizedCrop(24), T.RandomHorizontalFlip()],
    "floats": [T.CenterCrop(24), T.ToDtype(torch.float32, scale=True), T.Normalize((0.5,) * 3, (0.2,) * 3)],
}


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of clips that this process decodes."""
    made, decode = [], ClipDecoder.decode

    def noted(self: ClipDecoder, camera: int, clips: Any, *arguments: Any, **options: Any) -> Any:
        made.append(len(clips))
        return decode(self, camera, clips, *arguments, **options)

    monkeypatch.setattr(ClipDecoder, "decode", noted)
    return made


@pytest.fixture(scope="module")
def videos(decoder: Decoder) -> Path:
    path = decoder.top / "videos"
    path.mkdir()
    rng = np.random.default_rng(0)
    for codec, suffix in CODECS.items():
        frames = (
            rng.integers(0, 255, (NUM_FRAMES, 48, 64, 3), np.uint8) // 4
            + np.arange(NUM_FRAMES, dtype=np.uint8)[:, None, None, None]
        )
        options = {"pixel_format": "yuvj420p"} if codec == "mjpeg" else {}
        write_video(path / f"{codec}.{suffix}", codec, frames=frames, **options)
    return path


def batches(path: Path, *, clips: dict[str, Any] | None = None, **options: Any) -> Batches:
    data = dp.Clips(path, **{"frames": 3, "stride": 2, "per_visit": 2, **(clips or {})})
    loader = dp.DataLoader(data, 4, **{"shuffle": True, "seed": 1, "num_workers": 2, "on_error": "skip", **options})
    return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("clips", [{}, {"fps": 7.0, "clips": "random", "per_visit": 1}, {"stride": 13, "short": "repeat"}])
def test_clips_are_those_of_threads(
    videos: Path, decoder: Decoder, made_here: list[int], name: str, clips: dict[str, Any]
) -> None:
    expected = batches(videos, transform=CUT[name], clips=clips)
    assert len(expected) >= 4
    made_here.clear()
    assert equal(batches(videos, transform=CUT[name], clips=clips, num_workers=0, workers=decoder.workers()), expected)
    assert not made_here
    assert equal(batches(videos, transform=CUT[name], clips=clips, workers=decoder.workers()), expected)


def test_damaged_videos_have_the_same_bad_clips(videos: Path, decoder: Decoder, caplog: pytest.LogCaptureFixture) -> None:
    """Each is tried here too."""
    path = decoder.top / "damaged"
    path.mkdir()
    for file in videos.iterdir():
        data = bytearray(file.read_bytes())
        if file.suffix == ".mov":
            data[len(data) // 2 : len(data) // 2 + 400] = bytes(400)
        (path / file.name).write_bytes(data)
    expected = batches(path)
    told = caplog.text.count("bad sample")
    assert told
    assert equal(batches(path, num_workers=0, workers=decoder.workers()), expected)
    assert caplog.text.count("bad sample") == 2 * told


def test_explain_names_the_workers(videos: Path, decoder: Decoder) -> None:
    loader = dp.DataLoader(dp.Clips(videos, frames=3), 4, workers=decoder.workers())
    assert f"elsewhere 127.0.0.1:{decoder.port} (1 core): 2 visits at once" in str(dp.explain(loader))


def test_videos_that_a_worker_does_not_serve_are_named(tmp_path: Path, videos: Path, decoder: Decoder) -> None:
    (tmp_path / "x.mov").write_bytes((videos / "mjpeg.mov").read_bytes())
    with pytest.raises(OptionError, match=r"x\.mov: the worker at \S+ cannot read it"):
        batches(tmp_path, workers=decoder.workers())
