"""Log-mel spectrograms are torchaudio's, on any device."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from datapipe import transforms as T
from datapipe.errors import OptionError


def by_formulas(audio: np.ndarray, rate: int, n_fft: int, hop: int, n_mels: int) -> np.ndarray:
    """The same written out as torchaudio's documentation has it, in double precision."""
    padded = np.pad(audio, n_fft // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    frames = np.stack([padded[at : at + n_fft] * window for at in range(0, len(padded) - n_fft + 1, hop)])
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    corners = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), n_mels + 2) / 2595) - 1)
    bins = np.arange(n_fft // 2 + 1) * rate / n_fft
    bands = np.stack([np.interp(bins, corners[band : band + 3], (0, 1, 0)) for band in range(n_mels)])
    return np.log(np.maximum(bands @ power.T, 1e-10))


@pytest.mark.parametrize(("rate", "n_fft", "hop", "n_mels"), [(16_000, 400, 160, 40), (44_100, 1024, 256, 64)])
def test_values_are_those_of_the_formulas(rate: int, n_fft: int, hop: int, n_mels: int) -> None:
    audio = np.random.default_rng(0).normal(0, 0.1, (3, rate)).astype(np.float32)
    mel = T.LogMel(rate, n_fft=n_fft, hop=hop, n_mels=n_mels)
    made = mel({"audio": torch.from_numpy(audio), "lengths": torch.tensor([rate, 1600, 1])})
    assert made["mel"].shape == (3, n_mels, rate // hop + 1)
    assert made["mel_lengths"].tolist() == [rate // hop + 1, 1600 // hop + 1, 1]
    for row in range(3):
        expected = by_formulas(audio[row].astype(np.float64), rate, n_fft, hop, n_mels)
        assert np.abs(made["mel"][row].numpy() - expected).max() < 2e-3
    assert made["audio"].shape == (3, rate), "the batch keeps what it had"


def test_several_channels_and_next_to_no_sound() -> None:
    mel = T.LogMel(16_000)
    assert mel({"audio": torch.zeros(2, 3, 1600)})["mel"].shape == (2, 3, 80, 11)
    made = mel({"audio": torch.zeros(1, 5)})["mel"]
    assert made.isfinite().all()
    again = pickle.loads(pickle.dumps(mel))
    assert torch.equal(again({"audio": torch.ones(1, 1600)})["mel"], mel({"audio": torch.ones(1, 1600)})["mel"])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OptionError, match=r"f_min is 0\.0 and f_max is 9000"):
        T.LogMel(16_000, f_max=9000)
    with pytest.raises(OptionError, match="n_mels is 0"):
        T.LogMel(16_000, n_mels=0)
    with pytest.raises(OptionError, match="the batch has no 'audio'"):
        T.LogMel(16_000)({"image": torch.zeros(1)})


@pytest.mark.gpu
def test_a_gpu_gives_the_hosts_values() -> None:
    audio = torch.randn(4, 16_000) * 0.1
    mel = T.LogMel(16_000)
    assert (mel({"audio": audio.cuda()})["mel"].cpu() - mel({"audio": audio})["mel"]).abs().max() < 1e-3
