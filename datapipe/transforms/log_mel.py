"""Log-mel spectrograms of batches of sound, on the device on which they are."""

from __future__ import annotations

import math
from typing import Any

import torch

from datapipe.core.checks import real_number, whole_number
from datapipe.errors import OptionError

_FLOOR = 1e-10  # of powers, whose logarithm is taken


class LogMel:
    """Adds the log-mel spectrogram of `audio` to a batch of sound, as `mel`: pass it to a loader as `batch_transform`.

    >>> mel = datapipe.transforms.LogMel(16_000, n_mels=80)
    >>> loader = datapipe.DataLoader(data, batch_size=64, shuffle=True, batch_transform=mel)
    >>> for batch in loader:
    ...     scores = model(batch["mel"], batch["mel_lengths"])      # (64, 80, frames) float32 and (64,)

    rate: Hz of the sound. n_fft: samples of a window, a Hann window. hop: samples from one window to the next.
    n_mels: bands. f_min, f_max: Hz, between which they lie; None: up to half the rate.

    Bands are those of torchaudio's MelSpectrogram with its defaults (HTK's scale, triangles without normalisation, powers,
    windows centred by reflection); values are natural logarithms of powers of 1e-10 or more. `mel`: (b, n_mels, t // hop + 1)
    float32, or (b, channels, n_mels, ...); `mel_lengths`: (b,) int64, the windows that begin within each sample's length.
    Raises OptionError for numbers that do not fit, and for batches without `audio`.
    """

    def __init__(
        self, rate: int, *, n_fft: int = 400, hop: int = 160, n_mels: int = 80, f_min: float = 0.0, f_max: float | None = None
    ) -> None:
        self.rate, self.n_fft = whole_number(rate, "rate", least=1), whole_number(n_fft, "n_fft", least=2)
        self.hop, self.n_mels = whole_number(hop, "hop", least=1), whole_number(n_mels, "n_mels", least=1)
        self.f_min = real_number(f_min, "f_min")
        self.f_max = rate / 2 if f_max is None else real_number(f_max, "f_max")
        if not 0 <= self.f_min < self.f_max <= rate / 2:
            raise OptionError(f"f_min is {f_min} and f_max is {f_max}; they must be in order, between 0 and {rate / 2:g} Hz")
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __repr__(self) -> str:
        return f"LogMel({self.rate}, n_fft={self.n_fft}, hop={self.hop}, n_mels={self.n_mels})"

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with `mel` and `mel_lengths`."""
        audio = batch.get("audio") if isinstance(batch, dict) else None
        if not isinstance(audio, torch.Tensor):
            raise OptionError("LogMel: the batch has no 'audio'; use it on batches of datapipe.Audio, before they are renamed")
        window, bands = self._constants_on(audio.device)
        flat = audio.reshape(-1, audio.shape[-1])
        if flat.shape[-1] <= self.n_fft // 2:  # less than can be reflected
            flat = torch.nn.functional.pad(flat, (0, self.n_fft // 2 + 1 - flat.shape[-1]))
        spectrum = torch.stft(flat, self.n_fft, self.hop, window=window, center=True, pad_mode="reflect", return_complex=True)
        power = spectrum.real.square() + spectrum.imag.square()
        mel = (bands @ power).clamp_(min=_FLOOR).log_()
        mel = mel.view(*audio.shape[:-1], *mel.shape[-2:])
        made = {**batch, "mel": mel}
        if "lengths" in batch:
            made["mel_lengths"] = batch["lengths"] // self.hop + 1
        return made

    def _constants_on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the window and the bands on a device, where they are kept; made by the host, so that devices have the same."""
        found = self._constants.get(device)
        if found is None:
            window = torch.hann_window(self.n_fft)
            found = self._constants[device] = window.to(device), self._bands().to(device)
        return found

    def _bands(self) -> torch.Tensor:
        """Return (n_mels, n_fft // 2 + 1) float32 weights: triangles, equally wide on HTK's scale of mels."""
        low, high = (2595 * math.log10(1 + f / 700) for f in (self.f_min, self.f_max))
        mels = torch.linspace(low, high, self.n_mels + 2, dtype=torch.float64)
        corners = 700 * (10 ** (mels / 2595) - 1)
        bins = torch.linspace(0, self.rate // 2, self.n_fft // 2 + 1, dtype=torch.float64)
        widths = corners.diff()
        slopes = corners[None, :] - bins[:, None]
        rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
        return torch.minimum(rising, falling).clamp_(min=0).T.contiguous().float()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_constants": {}}
