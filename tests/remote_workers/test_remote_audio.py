"""Sound that other machines decode: that of threads, of every format, also where recordings are damaged."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from batches import Batches, equal
from decoders import Decoder

pytest.importorskip("soundfile")
from sound_files import sound, write_sound

import datapipe as dp
from datapipe.codecs.audio.resampling import Span
from datapipe.errors import FormatError
from datapipe.index.media import MediaSource
from datapipe.kernel.process_main import Scratch
from datapipe.kinds.audio import served
from datapipe.kinds.audio.reading import SoundReader, Stretch
from datapipe.remote_workers.desk import Desk
from datapipe.remote_workers.wire import Request, unpacked

SUFFIXES = ("flac", "wav", "mp3", "ogg", "flac", "aiff", "caf", "wav")
HOW: dict[str, dict[str, Any]] = {
    "crops": {"seconds": 0.5, "rate": 8000},
    "stereo": {"seconds": 0.7, "rate": 16_000, "channels": 2, "crop": "center"},
    "whole": {"whole": True, "rate": 11_025},
    "by length": {"whole": True, "rate": 8000, "max_seconds": 4},
}


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that this process reads."""
    made, read = [], SoundReader.read

    def noted(self: SoundReader, out: torch.Tensor, stretches: Any) -> Any:
        made.append(len(stretches))
        return read(self, out, stretches)

    monkeypatch.setattr(SoundReader, "read", noted)
    return made


@pytest.fixture(scope="module")
def recordings(decoder: Decoder) -> Path:
    path = decoder.top / "recordings"
    for number in range(24):
        suffix = SUFFIXES[number % len(SUFFIXES)]
        write_sound(path / f"class{number // 8}" / f"{number}.{suffix}", sound(0.4 + number / 20, channels=2, seed=number))
    return path


def batches(path: Path, how: dict[str, Any], **options: Any) -> Batches:
    if "max_seconds" not in how:
        options["batch_size"] = 5
    data = dp.Audio(path, **how, skip_bad=True)
    loader = dp.DataLoader(data, **{"shuffle": True, "seed": 1, "num_workers": 2, "on_error": "replace", **options})
    return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("name", HOW)
def test_samples_are_those_of_threads(recordings: Path, decoder: Decoder, made_here: list[int], name: str) -> None:
    expected = batches(recordings, HOW[name])
    assert len(expected) >= 4
    made_here.clear()
    assert equal(batches(recordings, HOW[name], num_workers=0, workers=decoder.workers()), expected)
    assert not made_here
    assert equal(batches(recordings, HOW[name], workers=decoder.workers()), expected)


def test_members_of_tars_are_read_there(decoder: Decoder, made_here: list[int]) -> None:
    path = decoder.top / "sound-tars"
    path.mkdir()
    with tarfile.open(path / "s-0.tar", "w") as tar:
        for number in range(9):
            data = write_sound(decoder.top / "one.flac", sound(0.5 + number / 9, seed=number)).read_bytes()
            entry = tarfile.TarInfo(f"{number}.flac")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    expected = batches(path, HOW["crops"])
    made_here.clear()
    assert equal(batches(path, HOW["crops"], num_workers=0, workers=decoder.workers()), expected)
    assert not made_here


def test_damaged_recordings_are_the_same_bad_samples(
    decoder: Decoder, made_here: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Each is tried here too, and replaced."""
    path = decoder.top / "damaged-sound"
    for number in range(8):
        file = write_sound(path / f"{number}.flac", sound(1.0, seed=number))
        if number == 5:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    how = {"seconds": 0.9, "rate": 8000}
    expected = batches(path, how)
    assert "5.flac" in caplog.text
    made_here.clear()
    caplog.clear()
    assert equal(batches(path, how, num_workers=0, workers=decoder.workers()), expected)
    assert "5.flac" in caplog.text
    assert 0 < sum(made_here) <= 16, "the blocks of the bad one, and others in its place"


def test_explain_names_the_workers(recordings: Path, decoder: Decoder) -> None:
    text = str(dp.explain(dp.DataLoader(dp.Audio(recordings, **HOW["crops"]), 4, workers=decoder.workers())))
    assert f"elsewhere 127.0.0.1:{decoder.port} (1 core): 2 blocks at once" in text


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, -1), (1, -2), (1, 1 << 40), (2, -1), (2, 1 << 50), (3, 0), (3, 1 << 41), (4, 0), (4, 1 << 40), (5, 0), (5, 5000),
        (7, -1), (7, 1 << 40), (8, -1), (8, 4001),
    ],
)  # fmt: skip
def test_what_no_loader_asks_is_refused(recordings: Path, place: int, value: int) -> None:
    file = next(recordings.rglob("*.flac"))
    numbers = [0, -1, 0, 6400, 16_000, 2, 0, 10, 3000]
    numbers[place] = value
    stretch = Stretch(MediaSource(str(file), *numbers[:2]), Span(*numbers[2:7]), *numbers[7:])
    request = unpacked(served.asked(8000, torch.empty(1, 2, 4000), [stretch]), Request)
    desk = Desk([str(recordings)])
    desk.use(Scratch())
    with pytest.raises(FormatError, match="a stretch of it is asked for that it cannot have, or that is too long"):
        served.serve(request.body, desk)


@pytest.mark.parametrize(
    "form", [{"rate": 0}, {"channels": 0}, {"channels": 2000}, {"num": -1}, {"num": 1 << 40}, {"numbers": b""}]
)
def test_forms_that_are_none_are_refused(recordings: Path, form: dict[str, Any]) -> None:
    stretch = Stretch(MediaSource(str(next(recordings.rglob("*.flac")))), Span(0, 6400, 16_000, 2), 0, 0)
    body = msgspec.msgpack.decode(unpacked(served.asked(8000, torch.empty(1, 2, 4), [stretch]), Request).body)
    desk = Desk([str(recordings)])
    desk.use(Scratch())
    with pytest.raises(FormatError):
        served.serve(msgspec.Raw(msgspec.msgpack.encode({**body, **form})), desk)


def test_a_stretch_that_would_be_read_from_too_many_frames_is_refused(recordings: Path) -> None:
    """A second at 1 Hz of a recording at 10 MHz."""
    file = next(recordings.rglob("*.flac"))
    stretch = Stretch(MediaSource(str(file)), Span(0, 1 << 36, 10_000_000, 2), 0, 100)
    request = unpacked(served.asked(1, torch.empty(1, 2, 100), [stretch]), Request)
    desk = Desk([str(recordings)])
    desk.use(Scratch())
    with pytest.raises(FormatError, match="too long"):
        served.serve(request.body, desk)


def test_rows_are_padded_with_zeros(recordings: Path) -> None:
    file = next(recordings.rglob("*.wav"))
    desk = Desk([str(recordings)])
    scratch = Scratch()
    scratch.take(1 << 16)[:] = b"\xff" * (1 << 16)
    desk.use(scratch)
    stretch = Stretch(MediaSource(str(file)), Span(0, 6400, 16_000, 2), 0, 100)
    request = unpacked(served.asked(16_000, torch.empty(1, 2, 4000), [stretch]), Request)
    rows, _ = served.serve(request.body, desk)
    assert rows.shape == (1, 2, 4000)
    assert not rows[:, :, 100:].any()
    assert np.isfinite(rows.numpy()).all()
