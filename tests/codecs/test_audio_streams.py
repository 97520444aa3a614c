"""The length of MP3 and Ogg is that of all their sound, also where no header says it, and where files were joined by `cat`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sound_files import RATE, Floats, sound, with_id3, without_info, write_sound

from datapipe.codecs.audio.decoding import AudioFacts, audio_facts, checked_facts, read_frames
from datapipe.errors import DecodeError

LOUD_THEN_QUIET = np.concatenate([sound(1.5), np.zeros((3 * RATE, 1), np.float32)])
DELAY = 1105  # samples that LAME's header lets a decoder leave out
ID3V1, APE = b"TAG" + b"x" * 125, b"APETAGEX" + (2000).to_bytes(4, "little") * 2 + bytes(16) + b"\xff\xf3" * 1000


def encoded(folder: Path, name: str, samples: Floats, **options: Any) -> bytes:
    if name.endswith("mp3"):
        options = {"bitrate_mode": "VARIABLE"} | options
    if name.endswith("opus"):
        options = {"format": "OGG", "subtype": "OPUS"}
    return write_sound(folder / name, samples, **options).read_bytes()


def facts(data: bytes) -> AudioFacts:
    return checked_facts(io.BytesIO(data), len(data))


def read(data: bytes, first: int = 0, num: int | None = None) -> Floats:
    found = facts(data)
    out = np.full((found.num_frames - first if num is None else num, found.channels), np.nan, np.float32)
    read_frames(io.BytesIO(data), first, out, rate=found.rate, has_streams=found.has_streams)
    return out


@pytest.mark.parametrize("samples", [LOUD_THEN_QUIET, LOUD_THEN_QUIET[::-1]], ids=["says too little", "says too much"])
@pytest.mark.parametrize("channels", [1, 2])
def test_mp3_of_variable_bit_rate_without_a_header_is_counted(samples: Floats, channels: int, tmp_path: Path) -> None:
    data = encoded(tmp_path, "a.mp3", samples.repeat(channels, axis=1))
    expected, found = read(data), read(without_info(data))
    assert len(samples) == len(expected) <= len(found) - DELAY < len(expected) + 3 * 576
    assert np.abs(found[DELAY : DELAY + len(expected)] - expected).max() < 1e-6
    assert (read(without_info(data), 40_000, 500) == found[40_000:40_500]).all()


def test_mp3_of_one_bit_rate_without_a_header_is_counted(tmp_path: Path) -> None:
    data = encoded(tmp_path, "a.mp3", LOUD_THEN_QUIET, bitrate_mode="CONSTANT", compression_level=0.5)
    expected, found = read(data), read(without_info(data))
    assert np.abs(found[DELAY : DELAY + len(expected)] - expected).max() < 1e-6
    assert not facts(without_info(data)).has_streams


@pytest.mark.parametrize("name", ["mp3", "ogg", "opus"])
def test_joined_files_are_one_after_the_other(name: str, tmp_path: Path) -> None:
    one, two = (encoded(tmp_path, f"{number}.{name}", sound(seconds, seed=number)) for number, seconds in enumerate((0.6, 1.3)))
    parts = {one: read(one), two: read(two)}
    for joined in ([one, two], [two, one], [one, one, one]):
        whole, data = np.concatenate([parts[part] for part in joined]), b"".join(joined)
        assert (read(data) == whole).all()
        seam = len(parts[joined[0]])
        for first, num in ((0, 10), (seam - 100, 200), (seam, 300), (len(whole) - 5, 5)):
            assert np.abs(read(data, first, num) - whole[first : first + num]).max() < 2e-3


@pytest.mark.parametrize("tag", [ID3V1, APE, b"\0" * 3000], ids=["ID3", "APE", "zeros"])
def test_tags_lie_between_joined_mp3s_and_after_them(tag: bytes, tmp_path: Path) -> None:
    path = write_sound(tmp_path / "a.mp3", sound(1))
    plain = read(path.read_bytes())
    data = with_id3(path).read_bytes() + tag
    assert (read(data) == plain).all()
    assert (read(data + data) == np.concatenate([plain, plain])).all()
    bare = without_info(encoded(tmp_path, "b.mp3", sound(1)))
    assert (read(bare + tag + bare) == np.concatenate([read(bare)] * 2)).all()


def test_a_header_that_says_how_long_its_file_is_is_believed(tmp_path: Path) -> None:
    """Or else all of each file would be read when it is opened."""
    data = encoded(tmp_path, "a.mp3", sound(20, rate=8000)) + ID3V1 + APE

    class Counted(io.BytesIO):
        nbytes = 0

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            Counted.nbytes += (num := super().readinto(buffer))
            return num

        def read(self, size: int | None = -1) -> bytes:
            Counted.nbytes += len(found := super().read(size))
            return found

    assert not audio_facts(Counted(data)).has_streams
    assert Counted.nbytes < len(data) // 4


def test_joined_files_of_several_rates_or_channels_are_refused(tmp_path: Path) -> None:
    for name in ("mp3", "ogg"):
        one = encoded(tmp_path, f"1.{name}", sound(1))
        two = write_sound(tmp_path / f"2.{name}", sound(1, rate=8000), rate=8000).read_bytes()
        stereo = encoded(tmp_path, f"3.{name}", sound(1, channels=2))
        with pytest.raises(
            DecodeError, match=r"changes from 16,000 Hz, 1 channel to 8,000 Hz, 1 channel at byte .* encode it again"
        ):
            facts(one + two)
        with pytest.raises(DecodeError, match="to 16,000 Hz, 2 channels"):
            facts(one + stereo)


def test_mp3_that_is_cut_has_what_is_left_where_no_header_says_more(tmp_path: Path) -> None:
    data = encoded(tmp_path, "a.mp3", sound(3))
    cut = without_info(data)[: len(data) // 2]
    assert np.abs(read(cut)[DELAY:10_000] - read(data)[: 10_000 - DELAY]).max() < 1e-6
    with pytest.raises(DecodeError, match="samples early"):
        read(data[: len(data) // 2])


def test_what_only_looks_like_frames_is_refused_soon(tmp_path: Path) -> None:
    bare = without_info(encoded(tmp_path, "a.mp3", sound(0.5)))
    with pytest.raises(DecodeError, match="has no frame of MP3 near byte"):
        facts(bare + b"\xff\xfb\x90\0\xff\xfb\xa0\0" * 20_000)


def test_a_file_that_is_shorter_by_now_says_so(tmp_path: Path) -> None:
    data = encoded(tmp_path, "a.ogg", sound(1))
    with pytest.raises(DecodeError, match="changed; open the data again"):
        read_frames(io.BytesIO(data + data), 0, np.empty((3 * RATE, 1), np.float32), rate=RATE, has_streams=True)
