"""Sound files of every odd kind give the samples that were written, or an error that says why not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sound_files import RATE, Floats, in_16_bits, sound, soundfile, streamed_flac, with_id3, write_sound

from datapipe.codecs.audio.decoding import audio_facts, read_frames
from datapipe.errors import DecodeError
from datapipe.testing.loaders.processes import in_forked_child

EXACT: dict[str, dict[str, Any]] = {
    "16.wav": {"subtype": "PCM_16"}, "8.wav": {"subtype": "PCM_U8"}, "24.wav": {"subtype": "PCM_24"},
    "32.wav": {"subtype": "PCM_32"}, "float.wav": {"subtype": "FLOAT"}, "double.wav": {"subtype": "DOUBLE"},
    "16.flac": {"subtype": "PCM_16"}, "24.flac": {"subtype": "PCM_24"}, "16.aiff": {"subtype": "PCM_16"}, "16.au": {},
    "wavex.wav": {"format": "WAVEX", "subtype": "PCM_24"}, "rf64.wav": {"format": "RF64"},
}  # fmt: skip
LOSSY = ("a.mp3", "a.ogg", "a.opus")


def filled(file: Any, first: int, num: int, rate: int = RATE, channels: int = 1) -> Floats:
    out = np.full((num, channels), np.nan, np.float32)
    read_frames(file, first, out, rate=rate)
    return out


def read(path: Path, first: int, num: int, rate: int = RATE, channels: int = 1) -> Floats:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return filled(descriptor, first, num, rate, channels)
    finally:
        os.close(descriptor)


def facts(path: Path) -> Any:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return audio_facts(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("channels", [1, 2, 8])
def test_any_stretch_of_a_lossless_file_is_what_was_written(name: str, channels: int, tmp_path: Path) -> None:
    samples = sound(1.5, channels=channels)
    path = write_sound(tmp_path / name, samples, **EXACT[name])
    found = facts(path)
    assert found[:3] == (len(samples), RATE, channels)
    bound = 1 / 128 if name.startswith("8") else 1 / 32768
    for first, num in ((0, len(samples)), (0, 10), (5000, 7001), (len(samples) - 3, 3)):
        stretch = read(path, first, num, channels=channels)
        assert np.abs(stretch - samples[first : first + num]).max() <= bound


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("rate", [8000, 16_000, 48_000])
def test_a_stretch_of_a_lossy_file_is_that_of_the_whole(name: str, rate: int, tmp_path: Path) -> None:
    samples = sound(3, rate=rate)
    options = {"format": "OGG", "subtype": "OPUS"} if name.endswith("opus") else {}
    path = write_sound(tmp_path / name, samples, rate=rate, **options)
    found = facts(path)
    assert found.rate == rate
    assert found.num_frames == len(samples)
    whole = read(path, 0, found.num_frames, rate)
    assert np.corrcoef(whole[:, 0], samples[:, 0])[0, 1] > 0.9
    for first in (0, 1000, rate, *np.random.default_rng(0).integers(0, len(samples) - 2000, 20).tolist()):
        assert np.abs(read(path, first, 2000, rate) - whole[first : first + 2000]).max() < 2e-3


@pytest.mark.parametrize(
    ("container", "coding"),
    [("WAV", "GSM610"), ("WAV", "G721_32"), ("WAV", "NMS_ADPCM_32"), ("AIFF", "GSM610"), ("AU", "G723_24"), ("WAV", "IMA_ADPCM")],
)
def test_a_stretch_of_what_cannot_be_sought_in_is_that_of_the_whole(container: str, coding: str, tmp_path: Path) -> None:
    """Such as recordings of telephones: decoded from the beginning."""
    path = write_sound(tmp_path / "a", sound(1, rate=8000), rate=8000, format=container, subtype=coding)
    whole = read(path, 0, facts(path).num_frames, 8000)
    assert len(whole) >= 8000
    for first, num in ((0, 100), (1, 10), (4001, 3000), (len(whole) - 5, 5)):
        assert (read(path, first, num, 8000) == whole[first : first + num]).all()


def test_rates_up_to_192_khz(tmp_path: Path) -> None:
    for rate in (8000, 11_025, 44_100, 192_000):
        path = write_sound(tmp_path / f"{rate}.flac", sound(0.2, rate=rate), rate=rate)
        assert facts(path).rate == rate


def test_a_stream_that_does_not_say_how_long_it_is_says_so(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="does not say how long it is, as streams do not; encode it again"):
        facts(streamed_flac(tmp_path / "a.flac", sound(2)))


def test_a_wav_whose_header_says_too_much_has_what_there_is(tmp_path: Path) -> None:
    """As programs write that do not go back."""
    samples = sound(1)
    path = write_sound(tmp_path / "a.wav", samples)
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = b"\xff" * 4
    path.write_bytes(data)
    assert facts(path).num_frames == len(samples)
    assert (read(path, 100, 500) == in_16_bits(samples[100:600])).all()


@pytest.mark.parametrize("name", ["a.mp3", "a.flac"])
def test_tags_before_the_sound_are_passed_over(name: str, tmp_path: Path) -> None:
    path = write_sound(tmp_path / name, sound(2))
    before = facts(path), read(path, 100, 5000)
    with_id3(path)
    assert facts(path) == before[0]
    assert (read(path, 100, 5000) == before[1]).all()


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _overwrite(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4000] = bytes(4000)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_cut, _overwrite])
def test_damage_in_flac_is_an_error_where_it_is(damage: Callable[[Path], None], tmp_path: Path) -> None:
    samples = sound(8)
    path = write_sound(tmp_path / "a.flac", samples)
    damage(path)
    assert facts(path).num_frames == len(samples)
    assert (read(path, 1000, 4000) == in_16_bits(samples[1000:5000])).all()
    with pytest.raises(DecodeError):
        read(path, 0, len(samples))
    with pytest.raises(DecodeError):
        read(path, len(samples) // 2 - 8000, 16_000)


def test_a_wav_that_is_cut_has_what_is_left(tmp_path: Path) -> None:
    samples = sound(1)
    path = write_sound(tmp_path / "a.wav", samples)
    path.write_bytes(path.read_bytes()[: 44 + 2 * 5000])
    assert facts(path).num_frames == 5000
    with pytest.raises(DecodeError, match=r"ends 11,000 samples early, of 16,000"):
        read(path, 0, 16_000)


@pytest.mark.parametrize("data", [b"", b"RIFF", b"hello, this is no sound\n" * 50, b"fLaC" + bytes(100), b"OggS" + bytes(200)])
def test_what_is_no_sound_says_so(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(data)
    with pytest.raises(DecodeError, match="cannot be decoded"):
        facts(path)


def test_a_file_that_has_another_rate_by_now_is_refused(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.wav", sound(1))
    with pytest.raises(DecodeError, match=r"has 16,000 Hz, 1 channels, and 8,000 Hz, 1 when it was indexed"):
        read(path, 0, 10, rate=8000)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -1e30])
def test_samples_that_are_no_numbers_are_bad(odd: float, tmp_path: Path) -> None:
    samples = sound(1)
    samples[5000] = odd
    path = write_sound(tmp_path / "a.wav", samples, subtype="FLOAT")
    assert (read(path, 0, 5000) == samples[:5000]).all()
    with pytest.raises(DecodeError, match="has samples that are no numbers, or beyond"):
        read(path, 4000, 2000)


@pytest.mark.parametrize("name", ["a.mp3", "a.opus"])
def test_lossy_files_that_are_cut_say_so_or_are_shorter(name: str, tmp_path: Path) -> None:
    samples = sound(5)
    path = write_sound(tmp_path / name, samples, **({"format": "OGG", "subtype": "OPUS"} if name.endswith("opus") else {}))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    num = facts(path).num_frames
    if num == len(samples):
        with pytest.raises(DecodeError, match=r"ends [\d,]+ samples early, of 80,000: damaged, or cut off"):
            read(path, 0, num)
    else:
        assert read(path, 0, num).any()


def test_a_file_object_is_as_good_as_a_descriptor(tmp_path: Path) -> None:
    samples = sound(1)
    path = write_sound(tmp_path / "a.flac", samples)
    with open(path, "rb") as file:
        assert audio_facts(file).num_frames == len(samples)
    with open(path, "rb") as file:
        assert (filled(file, 300, 500) == in_16_bits(samples[300:800])).all()


def test_a_forked_child_decodes_while_a_thread_of_its_parent_opens_a_file(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.flac", sound(1))
    expected = read(path, 0, 100)
    lock = getattr(soundfile.SoundFile, "_sf_error_lock", None)
    if lock is None:
        pytest.skip("soundfile < 0.14 opens files without a lock")
    with lock:  # as another thread would hold it
        assert in_forked_child(lambda: np.testing.assert_array_equal(read(path, 0, 100), expected)) == 0


def test_libsndfile_knows_the_formats_of_the_extra() -> None:
    assert {"FLAC", "WAV", "OGG", "MP3", "AIFF"} <= {*soundfile.available_formats()}
