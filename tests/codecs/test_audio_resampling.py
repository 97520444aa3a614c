"""A stretch of a recording, resampled, is the stretch of the resampled recording; and how far that is from torchaudio's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sound_files import Floats, sound

from datapipe.codecs.audio.resampling import num_resampled, resampled, stretch_of, with_channels
from datapipe.errors import DecodeError

pytest.importorskip("soxr")

RATES = [
    (44_100, 16_000),
    (48_000, 16_000),
    (8000, 16_000),
    (192_000, 16_000),
    (22_050, 24_000),
    (11_025, 44_100),
    (16_001, 16_000),
]


def stretch(whole: Floats, first: int, num: int, rate: int, wanted: int) -> Floats:
    part = stretch_of(first, num, num_frames=len(whole), rate=rate, wanted=wanted)
    assert 0 <= part.first <= part.first + part.num <= len(whole)
    return resampled(whole[part.first : part.first + part.num], rate, wanted)[part.skip : part.skip + num]


@pytest.mark.parametrize(("rate", "wanted"), RATES)
def test_a_stretch_is_that_of_the_whole(rate: int, wanted: int) -> None:
    whole = sound(4, rate=rate, channels=2)
    expected = resampled(whole, rate, wanted)
    length = int(num_resampled(np.array([len(whole)]), np.array([rate]), wanted)[0])
    assert length <= len(expected) <= length + 1
    for first, num in ((0, 1000), (17, 5000), (length // 2, wanted), (length - 999, 999), (0, length)):
        found = stretch(whole, first, num, rate, wanted)
        assert found.shape == (num, 2)
        assert np.abs(found - expected[first : first + num]).max() < 1e-5


def test_little_more_is_read_than_the_stretch() -> None:
    part = stretch_of(160_000, 80_000, num_frames=44_100 * 60, rate=44_100, wanted=16_000)
    assert part.num < 1.05 * 5 * 44_100


def by_torchaudio(sound: Floats, rate: int, wanted: int, width: int = 6, rolloff: float = 0.99) -> Floats:
    """torchaudio.functional.resample with its defaults (2.11): a windowed sinc, whose window is a Hann window."""
    common = math.gcd(rate, wanted)
    old, new = rate // common, wanted // common
    base = min(old, new) * rolloff
    half = math.ceil(width * old / base)
    idx = torch.arange(-half, half + old, dtype=torch.float64)[None, None] / old
    t = (torch.arange(0, -new, -1, dtype=torch.float64)[:, None, None] / new + idx) * base
    t = t.clamp(-width, width)
    window = torch.cos(t * math.pi / width / 2) ** 2
    t = t * math.pi
    kernels = torch.where(t == 0, 1.0, t.sin() / torch.where(t == 0, 1.0, t)) * window * (base / old)
    wave = torch.from_numpy(sound.T.copy())
    padded = torch.nn.functional.pad(wave, (half, half + old))
    made = torch.nn.functional.conv1d(padded[:, None], kernels.float(), stride=old)
    made = made.transpose(1, 2).reshape(len(wave), -1)
    return made[:, : math.ceil(new * len(sound) / old)].T.numpy()


@pytest.mark.parametrize(("rate", "wanted"), [(44_100, 16_000), (48_000, 16_000), (8000, 16_000), (22_050, 24_000)])
def test_it_is_near_to_torchaudios(rate: int, wanted: int) -> None:
    """Below three tenths of the lower rate; above it, torchaudio's short filter lets more pass, or less."""
    whole = sound(2, rate=rate)
    ours, theirs = resampled(whole, rate, wanted), by_torchaudio(whole, rate, wanted)
    num = min(len(ours), len(theirs))
    inner = slice(500, num - 500)
    off = np.sqrt(np.mean((ours[inner] - theirs[inner]) ** 2)) / np.sqrt(np.mean(theirs[inner] ** 2))
    assert 20 * np.log10(off) < -50


def test_channels() -> None:
    stereo = sound(0.1, channels=2)
    assert with_channels(stereo, 2) is stereo
    assert np.abs(with_channels(stereo, 1) - stereo.mean(axis=1, keepdims=True)).max() < 1e-7
    assert (with_channels(stereo[:, :1], 3) == stereo[:, :1]).all()
    with pytest.raises(DecodeError, match=r"has 2 channels, which are not made 3; pass channels=1, or 2"):
        with_channels(stereo, 3)
