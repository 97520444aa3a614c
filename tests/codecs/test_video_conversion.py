"""Frames become the pixels that a player shows: RGB, resized, turned, cut; depth as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

av = pytest.importorskip("av")

from video_files import KINDS, decoded_in_order, depths, pictures  # noqa: E402

from datapipe.codecs.video.conversion import FrameConverter, Resize  # noqa: E402
from datapipe.codecs.video.track import VideoCoding  # noqa: E402
from datapipe.errors import DecodeError, OptionError  # noqa: E402


def coding_of(frame: Any, rotation: int = 0) -> VideoCoding:
    return VideoCoding("", b"", frame.width, frame.height, frame.format.name, rotation)


def converted(
    frame: Any, shape: tuple[int, int], *, rotation: int = 0, region: Any = None, resize: Resize = Resize.EXACT
) -> NDArray[np.uint8]:
    out = np.zeros((*shape, 3), np.uint8)
    FrameConverter(resize).convert(frame, coding_of(frame, rotation), out, region=region)
    return out


def psnr(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float(10 * np.log10(255**2 / max(1e-9, np.mean((one.astype(float) - other) ** 2))))


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The sixth frame of videos in each pixel format."""
    names = ("h264.mp4", "h264-444.mp4", "h264-odd.mp4", "h264-10bit.mp4", "h264-interlaced.mp4", "h264-full-range.mp4")
    names += ("hevc-hdr.mp4", "vp9-odd.mp4", "mjpeg.mov", "depth.mkv", "depth.mp4")
    place = tmp_path_factory.mktemp("videos")
    return {name: decoded_in_order(KINDS[name](place / name))[5] for name in names}


FORMATS = ("h264.mp4", "h264-444.mp4", "h264-odd.mp4", "h264-10bit.mp4", "h264-interlaced.mp4", "hevc-hdr.mp4", "vp9-odd.mp4",
           "mjpeg.mov", "depth.mkv")  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_converting_a_region_is_cutting_what_was_converted(name: str, frames: dict[str, Any]) -> None:
    frame = frames[name]
    whole = converted(frame, (frame.height, frame.width))
    rng = np.random.default_rng(0)
    for rotation in (0, 90, 180, 270):
        shown = np.rot90(whole, -rotation // 90)
        for _ in range(15):
            height, width = rng.integers(1, shown.shape[0] + 1), rng.integers(1, shown.shape[1] + 1)
            top, left = rng.integers(0, shown.shape[0] - height + 1), rng.integers(0, shown.shape[1] - width + 1)
            region = (int(top), int(left), int(height), int(width))
            found = converted(frame, region[2:], rotation=rotation, region=region)
            assert np.array_equal(found, shown[top : top + height, left : left + width])


@pytest.mark.parametrize("name", FORMATS)
def test_fast_resizing_is_close(name: str, frames: dict[str, Any]) -> None:
    frame = frames[name]
    for region, least in ((None, 28), ((3, 5, 41, 51), 22)):
        exact, fast = (converted(frame, (32, 40), region=region, resize=resize) for resize in (Resize.EXACT, Resize.FAST))
        assert psnr(exact, fast) > least


@pytest.mark.parametrize("width", range(8, 52, 2))
def test_resizing_in_every_width(width: int) -> None:
    """swscale treats the last columns of some widths by other code."""
    frame = av.VideoFrame.from_ndarray(pictures(1, width, 18)[0], "rgb24").reformat(format="yuv420p")
    whole = converted(frame, (18, width))
    resized = np.asarray(Image.fromarray(whole).resize((30, 20), Image.Resampling.BILINEAR))
    swscaled = av.VideoFrame.from_ndarray(whole, "rgb24").reformat(width=30, height=20).to_ndarray()
    found = converted(frame, (20, 30)).astype(int)
    assert np.abs(found - swscaled).max() <= 1
    assert psnr(found, resized) > 30
    assert psnr(found, converted(frame, (20, 30), resize=Resize.FAST)) > 25


def test_a_region_is_resized_as_a_picture_of_its_own(frames: dict[str, Any]) -> None:
    frame = frames["h264.mp4"]
    part = np.ascontiguousarray(converted(frame, (frame.height, frame.width))[7:48, 11:70])
    expected = av.VideoFrame.from_ndarray(part, "rgb24").reformat(width=30, height=20).to_ndarray()
    assert np.abs(converted(frame, (20, 30), region=(7, 11, 41, 59)).astype(int) - expected).max() <= 1


def test_frames_are_turned_as_players_turn_them(tmp_path: Path, frames: dict[str, Any]) -> None:
    frame = frames["h264.mp4"]
    plain = converted(frame, (64, 96))
    assert np.array_equal(converted(frame, (96, 64), rotation=90), np.rot90(plain, -1))
    assert np.array_equal(converted(frame, (64, 96), rotation=180), plain[::-1, ::-1])
    assert np.array_equal(converted(frame, (96, 64), rotation=270), np.rot90(plain))
    assert converted(frame, (30, 20), rotation=90).shape == (30, 20, 3)


def test_a_frame_of_another_size_is_resized_to_that_of_the_video(tmp_path: Path) -> None:
    frame = decoded_in_order(KINDS["h264-size-change.mp4"](tmp_path / "a.mp4"))[50]
    assert (frame.width, frame.height) == (64, 48)
    coding = VideoCoding("h264", b"", 96, 64)
    out, part = np.zeros((64, 96, 3), np.uint8), np.zeros((32, 40, 3), np.uint8)
    converter = FrameConverter()
    converter.convert(frame, coding, out)
    assert psnr(out, pictures(20, 64, 48)[10].repeat(2, 0)[:64].repeat(2, 1)[:, :96]) < 20  # not cut, not repeated
    converter.convert(frame, coding, part, region=(10, 20, 32, 40))
    assert psnr(part, out[10:42, 20:60]) > 24


def test_depth_keeps_its_values(frames: dict[str, Any]) -> None:
    frame = frames["depth.mkv"]
    out = np.zeros((64, 96, 1), np.uint16)
    converter = FrameConverter()
    converter.convert(frame, coding_of(frame), out)
    assert np.array_equal(out[:, :, 0], depths()[5])
    coarse = frames["depth.mp4"]
    converter.convert(coarse, coding_of(coarse), out)
    assert np.array_equal(out[:, :, 0], coarse.to_ndarray())
    assert 1000 < out.max() < 4096
    part = np.zeros((11, 13, 1), np.uint16)
    converter.convert(frame, coding_of(frame), part, region=(3, 5, 11, 13))
    assert np.array_equal(part[:, :, 0], depths()[5][3:14, 5:18])
    small = np.zeros((20, 30, 1), np.uint16)
    converter.convert(frame, coding_of(frame), small)
    assert set(small.ravel().tolist()) <= set(depths()[5].ravel().tolist())  # none between two


def test_what_cannot_be_converted(frames: dict[str, Any]) -> None:
    frame = frames["h264.mp4"]
    converter = FrameConverter()
    with pytest.raises(DecodeError, match="its frames are yuv420p, not depth"):
        converter.convert(frame, coding_of(frame), np.zeros((64, 96, 1), np.uint16))
    with pytest.raises(OptionError, match="out is float32"):
        converter.convert(frame, coding_of(frame), np.zeros((64, 96, 3), np.float32))  # type: ignore[arg-type]
