"""Frames of the GPU's video engines are the CPU's; what engines cannot decode, or decode otherwise, the CPU decodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

av = pytest.importorskip("av")

from video_files import KINDS, decoded_in_order, opened, pictures, planes, write_video, x264, x265  # noqa: E402
from video_files import same as equals  # noqa: E402

import datapipe as dp  # noqa: E402
from benchmarks.gpu import nvdec_stand_in  # noqa: E402
from benchmarks.gpu.host_runtime import HostRuntime, dry_nvdec  # noqa: E402
from benchmarks.gpu.nvdec_stand_in import Decoder, Surface  # noqa: E402
from datapipe.codecs.video.conversion import Resize  # noqa: E402
from datapipe.codecs.video.decoding import VideoDecoder  # noqa: E402
from datapipe.codecs.video.nal_units import in_annex_b, length_nbytes, nal_units, parameter_sets  # noqa: E402
from datapipe.codecs.video.track import ReadAt, VideoCoding, VideoTrack  # noqa: E402
from datapipe.core.environment import install_command  # noqa: E402
from datapipe.errors import DecodeError, DependencyError, OptionError  # noqa: E402
from datapipe.kernel.cuda_runtime import cuda_runtime  # noqa: E402
from datapipe.kinds.clips.choice import choose_clip_backend  # noqa: E402
from datapipe.kinds.clips.nvdec import decoder as decoders  # noqa: E402
from datapipe.kinds.clips.nvdec.decoder import EngineDecoder  # noqa: E402
from datapipe.kinds.clips.nvdec.library import import_nvdec  # noqa: E402
from datapipe.kinds.clips.nvdec.trust import Colours, Trust  # noqa: E402

CUDA = torch.device("cuda", 0)
ON_ENGINES = {"h264.mp4", "h264-open.mp4", "hevc.mp4", "hevc-open.mp4", "av1.mp4"}  # among others


def same(frame: Any, expected: Any) -> bool:
    return equals(frame, planes(expected))


def all_of(decoder: Any, track: VideoTrack, read: ReadAt) -> dict[int, Any]:
    return dict(decoder.decode(track, read, np.arange(len(track), dtype=np.int64)))


@pytest.fixture
def engines() -> Iterator[Any]:
    with nvdec_stand_in.stand_in() as module:
        Decoder.num_surfaces = 0
        yield module


@pytest.fixture
def track(tmp_path: Path) -> tuple[VideoTrack, ReadAt]:
    return opened(write_video(tmp_path / "a.mp4", options=x264("bframes=2")))


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", KINDS)
def test_frames_are_those_of_sequential_decoding(name: str, tmp_path: Path, engines: Any) -> None:
    path = KINDS[name](tmp_path / name)
    track, read = opened(path)
    expected = list(decoded_in_order(path))
    trust = Trust()
    decoder = EngineDecoder(HostRuntime(), trust)
    shuffled = np.random.default_rng(len(name)).permutation(len(track))
    requests = [np.sort(part) for part in np.array_split(shuffled, 5)] + [np.arange(len(track))]
    for request in requests:
        found = dict(decoder.decode(track, read, request.astype(np.int64)))
        assert sorted(found) == request.tolist()
        for number, frame in found.items():
            assert same(frame, expected[number]), number
    assert name not in ON_ENGINES or trust.num_frames >= len(track)


def test_pixels_are_the_cpu_s(track: tuple[VideoTrack, ReadAt], engines: Any) -> None:
    """The colours that the stream names, which an engine does not, are kept: RGB depends on them."""
    decoder = EngineDecoder(HostRuntime(), Trust())
    all_of(decoder, *track)
    for number, frame in all_of(decoder, *track).items():
        expected = all_of(VideoDecoder(), *track)[number]
        assert np.array_equal(frame.to_ndarray(format="rgb24"), expected.to_ndarray(format="rgb24"))
        assert (frame.colorspace, frame.color_range) == (expected.colorspace, expected.color_range)


def wrong(surfaces: list[Surface]) -> list[Surface]:
    for surface in surfaces:
        surface.pixels[3, 5] ^= 1
    return surfaces


def test_an_engine_that_decodes_otherwise_is_left_out(
    track: tuple[VideoTrack, ReadAt], engines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    honest = Decoder.Decode
    trust = Trust()
    with mock.patch.object(Decoder, "Decode", lambda self, packet: wrong(honest(self, packet))):
        found = all_of(EngineDecoder(HostRuntime(), trust), *track)
    assert not trust.may_serve(track[0].coding)
    expected = all_of(VideoDecoder(), *track)
    assert all(same(found[number], expected[number]) for number in expected)
    assert "they give other pixels" in caplog.text


def test_an_engine_that_refuses_a_coding_is_left_out(
    track: tuple[VideoTrack, ReadAt], engines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    refuse = mock.Mock(side_effect=RuntimeError("Codec not supported on this GPU"))
    engines.CreateDecoder = refuse
    trust = Trust()
    decoder = EngineDecoder(HostRuntime(), trust)
    for _ in range(5):
        assert len(all_of(decoder, *track)) == len(track[0])
    assert not trust.may_serve(track[0].coding)
    assert refuse.call_count == 3, "asked no more than that"
    assert caplog.text.count("Codec not supported") == 1


def test_frames_that_an_engine_does_not_give_are_the_cpu_s(track: tuple[VideoTrack, ReadAt], engines: Any) -> None:
    decoder = EngineDecoder(HostRuntime(), Trust())
    expected = all_of(decoder, *track)
    honest = Decoder.Decode
    with mock.patch.object(Decoder, "Decode", lambda self, packet: [one for one in honest(self, packet) if one.timestamp % 3]):
        found = all_of(decoder, *track)
    assert found.keys() == expected.keys()
    assert all(same(found[number], expected[number]) for number in expected)


def test_an_engine_that_fails_again_and_again_is_given_up(
    track: tuple[VideoTrack, ReadAt], engines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trust = Trust()
    decoder = EngineDecoder(HostRuntime(), trust)
    expected = all_of(decoder, *track)
    all_of(decoder, *track)
    assert trust.num_frames > 0
    fail = mock.Mock(side_effect=RuntimeError("out of memory"))
    with mock.patch.object(Decoder, "Decode", fail):
        for turn in range(5):
            found = all_of(decoder, *track)
            assert all(same(found[number], expected[number]) for number in expected)
            assert trust.may_serve(track[0].coding) == (turn < 2)
    assert fail.call_count == 3
    assert caplog.text.count("out of memory") == 1


def test_trust_needs_frames_that_differ(tmp_path: Path, engines: Any) -> None:
    """Any engine gives the right black frames."""
    still = [np.full((48, 64, 3), 40, np.uint8)] * 30
    track, read = opened(write_video(tmp_path / "still.mp4", frames=still, options=x264("bframes=2")))
    trust = Trust()
    decoder = EngineDecoder(HostRuntime(), trust)
    for _ in range(4):
        all_of(decoder, track, read)
    assert trust.num_frames == 0
    assert trust.may_serve(track.coding)


def test_frames_that_differ_add_up_to_trust(track: tuple[VideoTrack, ReadAt], engines: Any) -> None:
    trust = Trust()
    decoder = EngineDecoder(HostRuntime(), trust)
    for number in range(len(track[0])):
        list(decoder.decode(*track, np.array([number], np.int64)))
    assert trust.num_frames == len(track[0]) - 8


def test_an_engine_that_begins_to_decode_otherwise_is_found_out(
    track: tuple[VideoTrack, ReadAt], engines: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "_CHECK_EVERY", 4)
    trust = Trust()
    decoder = EngineDecoder(HostRuntime(), trust)
    all_of(decoder, *track)
    honest = Decoder.Decode
    with mock.patch.object(Decoder, "Decode", lambda self, packet: wrong(honest(self, packet))):
        for _ in range(5):
            all_of(decoder, *track)
    assert not trust.may_serve(track[0].coding)
    assert "they give other pixels" in caplog.text


def test_files_of_one_coding_whose_colours_differ_are_the_cpu_s() -> None:
    trust = Trust()
    coding = VideoCoding("av1", b"\x81\0\0\0 sequence header", 64, 48)
    trust.note_equal(coding, Colours(1, 1), range(8))
    assert trust.colours(coding) == Colours(1, 1)
    trust.note_equal(coding, Colours(5, 2), range(8))
    assert trust.colours(coding) is None
    trust.note_equal(coding, Colours(1, 1), range(8))
    assert trust.colours(coding) is None, "refused for good"


def test_codings_that_their_headers_do_not_say_are_the_cpu_s() -> None:
    trust = Trust()
    assert not trust.may_serve(VideoCoding("h264", b"", 64, 48))
    assert not trust.may_serve(VideoCoding("av1", b"\x81\0\0\0", 64, 48))
    assert not trust.may_serve(VideoCoding("mpeg4", b"header", 64, 48))
    assert not trust.may_serve(VideoCoding("av1", b"\x81\0\0\0 sequence header", 63, 48))


def test_decoding_that_is_given_up_leaves_nothing_behind(track: tuple[VideoTrack, ReadAt], engines: Any) -> None:
    decoder = EngineDecoder(HostRuntime(), Trust())
    expected = all_of(decoder, *track)
    frames = decoder.decode(*track, np.arange(len(track[0]), dtype=np.int64))
    next(frames)
    frames.close()  # type: ignore[attr-defined]
    found = all_of(decoder, *track)
    assert all(same(found[number], expected[number]) for number in expected)


def test_errors_of_the_file_are_raised(track: tuple[VideoTrack, ReadAt], engines: Any) -> None:
    decoder = EngineDecoder(HostRuntime(), Trust())
    all_of(decoder, *track)

    def fail(offset: int, size: int) -> bytes:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        all_of(decoder, track[0], fail)


@pytest.mark.parametrize("num_before", [0, 1], ids=["at first", "later"])
def test_cut_files_have_the_cpu_s_verdicts(num_before: int, track: tuple[VideoTrack, ReadAt], engines: Any) -> None:
    whole, read = track
    end = int(whole.packets.offset[len(whole.packets) * 2 // 3]) + 3
    cut = lambda offset, size: read(offset, size)[: max(0, end - offset)]  # noqa: E731
    decoder = EngineDecoder(HostRuntime(), Trust())
    for _ in range(num_before):
        all_of(decoder, whole, read)
    found, expected = all_of(decoder, whole, cut), all_of(VideoDecoder(), whole, cut)
    bad = {number: str(one) for number, one in expected.items() if isinstance(one, DecodeError)}
    assert bad
    assert {number: str(one) for number, one in found.items() if isinstance(one, DecodeError)} == bad
    assert all(same(found[number], expected[number]) for number in expected.keys() - bad.keys())


@pytest.mark.parametrize(
    ("codec", "options"), [("libx264", x264("bframes=2")), ("libx265", x265("bframes=2"))], ids=["h264", "hevc"]
)
@pytest.mark.parametrize("ending", [".mp4", ".mkv", ".ts"])
def test_packets_in_annex_b_are_those_of_ffmpeg(codec: str, options: dict[str, str], ending: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / f"a{ending}", codec, options=options)
    name = "h264" if codec == "libx264" else "hevc"
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        extradata = stream.codec_context.extradata or b""
        packets = [packet for packet in container.demux(stream) if packet.size]
        ours = [in_annex_b(bytes(packet), length_nbytes(name, extradata)) for packet in packets]
        ours[0] = parameter_sets(name, extradata) + ours[0]
        convert: Callable[[Any], list[Any]] = (
            av.BitStreamFilterContext(f"{name}_mp4toannexb", stream).filter if ending != ".ts" else lambda packet: [packet]
        )
        theirs = [bytes(one) for packet in packets for one in convert(packet)]
    sets = set(units_of(parameter_sets(name, extradata)))
    assert sets
    assert set(units_of(theirs[0])) <= set(units_of(ours[0])), "with the parameter sets"
    for one, other in zip(ours, theirs, strict=True):  # FFmpeg repeats the sets before later key frames
        assert [unit for unit in units_of(one) if unit not in sets] == [unit for unit in units_of(other) if unit not in sets]


def units_of(data: bytes) -> list[bytes]:
    return [data[start:end].rstrip(b"\0") for start, end in nal_units(data, 0)]


# -- a loader ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos in H.264 and HEVC, and one that no engine decodes. Not to be changed."""
    root = tmp_path_factory.mktemp("videos")
    for number in range(3):
        write_video(root / f"{number}.mp4", frames=pictures(40, seed=number), options=x264("bframes=3"))
    write_video(root / "3.mp4", "libx265", frames=pictures(40, seed=3), options=x265("bframes=3"))
    write_video(root / "4.mov", "mjpeg", frames=pictures(40, seed=4), pixel_format="yuvj420p")
    return root


def loader_of(path: Path, **options: Any) -> Any:
    data = dp.Clips(path, frames=4, stride=2, step=3, fields=["video", "id"])
    crop = dp.transforms.RandomResizedCrop(32)
    return dp.DataLoader(data, **{"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": 2, "transform": [crop], **options})


@pytest.mark.nightly
@pytest.mark.parametrize("num_workers", [0, 2, 12])
def test_batches_are_the_cpu_s(num_workers: int, videos: Path) -> None:
    expected = list(loader_of(videos))
    with dry_nvdec():
        Decoder.num_surfaces = 0
        loader = loader_of(videos, backend="clips_nvdec", num_workers=num_workers)
        for _ in range(2):
            found = list(loader)
            expected_now = expected if loader.state_dict()["epoch"] == 1 else found
            for batch, wanted in zip(found, expected_now, strict=True):
                assert batch["id"].equal(wanted["id"])
                assert batch["video"].equal(wanted["video"])
        assert Decoder.num_surfaces > 0
        assert loader.choice.backend == "clips_nvdec"


@pytest.mark.gpu
@pytest.mark.parametrize("num_workers", [0, 3, 12])
def test_batches_of_real_engines_are_the_cpu_s(num_workers: int, videos: Path) -> None:
    pytest.importorskip("PyNvVideoCodec")
    expected = list(loader_of(videos, device="cpu"))
    loader = loader_of(videos, backend="clips_nvdec", device="cuda", num_workers=num_workers)
    for batch, wanted in zip(loader, expected, strict=True):
        assert batch["id"].equal(wanted["id"].cuda())
        assert batch["video"].cpu().equal(wanted["video"])
    assert loader._passes.kind.trust.num_frames > 0


@pytest.mark.gpu
def test_a_real_engine_s_frames_are_the_cpu_s(track: tuple[VideoTrack, ReadAt]) -> None:
    pytest.importorskip("PyNvVideoCodec")
    decoder = EngineDecoder(cuda_runtime(CUDA), Trust())
    expected = all_of(VideoDecoder(), *track)
    for _ in range(3):
        found = all_of(decoder, *track)
        assert all(same(found[number], expected[number]) for number in expected)


# -- the choice ----------------------------------------------------------------------------------------


def never() -> list[float]:
    raise AssertionError("measured without need")


def test_auto_takes_the_cpu_unless_engines_are_faster(engines: Any) -> None:
    assert not choose_clip_backend("auto", CUDA, resize=Resize.EXACT, rates=lambda: [100.0, 115.0]).uses_nvdec
    found = choose_clip_backend("auto", CUDA, resize=Resize.EXACT, rates=lambda: [100.0, 130.0])
    assert found.backend == "clips_nvdec"
    assert "clips_nvdec 130, clips_cpu 100" in found.reason


@pytest.mark.nightly
def test_both_are_measured_on_the_clips_at_hand(videos: Path) -> None:
    with dry_nvdec():
        rates = loader_of(videos)._passes.kind._rates()
    assert len(rates) == 2
    assert min(rates) > 0


def test_nothing_is_measured_without_need(engines: Any) -> None:
    assert (
        choose_clip_backend("auto", torch.device("cpu"), resize=Resize.EXACT, rates=never).reason == "NVDEC needs an NVIDIA GPU"
    )
    assert choose_clip_backend("clips_cpu", CUDA, resize=Resize.EXACT, rates=never).backend == "clips_cpu"
    assert choose_clip_backend("clips_nvdec", CUDA, resize=Resize.EXACT, rates=never).backend == "clips_nvdec"


def test_a_fast_resize_is_the_cpu_s(engines: Any) -> None:
    assert "sampled" in choose_clip_backend("auto", CUDA, resize=Resize.FAST, rates=never).reason
    with pytest.raises(OptionError, match=r"pass resize='exact', or leave out backend"):
        choose_clip_backend("clips_nvdec", CUDA, resize=Resize.FAST, rates=never)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import_nvdec.cache_clear()
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", None)
    found = choose_clip_backend("auto", CUDA, resize=Resize.EXACT, rates=never)
    assert found.backend == "clips_cpu"
    assert install_command("nvdec") in found.reason
    with pytest.raises(DependencyError, match=re.escape(install_command("nvdec"))):
        choose_clip_backend("clips_nvdec", CUDA, resize=Resize.EXACT, rates=never)
    import_nvdec.cache_clear()


def test_backends_that_do_not_fit(videos: Path) -> None:
    with pytest.raises(OptionError, match=r"backend is 'dali'; choose one of auto, clips_cpu, clips_nvdec"):
        loader_of(videos, backend="dali")
    with pytest.raises(OptionError, match=r"backend='clips_nvdec' needs a GPU, and device is cpu"):
        list(loader_of(videos, backend="clips_nvdec", device="cpu"))


def test_explain_says_what_decodes(videos: Path) -> None:
    assert "clips_cpu: PyAV on 2 threads" in str(dp.explain(loader_of(videos)))
