"""Sound files of every odd kind, and the samples that were written into them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

soundfile = pytest.importorskip("soundfile")

RATE = 16_000
Floats = NDArray[np.float32]


def sound(seconds: float, *, rate: int = RATE, channels: int = 1, seed: int = 0) -> Floats:
    """(n, channels) noise without what lies above 5 kHz, and tones of other pitches for other seeds."""
    rng = np.random.default_rng(seed)
    num = round(seconds * rate)
    if not num:
        return np.zeros((0, channels), np.float32)
    spectrum = np.fft.rfft(rng.normal(size=(num, channels)), axis=0)
    spectrum[np.fft.rfftfreq(num, 1 / rate) > min(5000, 0.3 * rate)] = 0
    noise = np.fft.irfft(spectrum, n=num, axis=0)
    times = np.arange(num)[:, None] / rate
    tones = sum(np.sin(2 * np.pi * (150 * number + 17 * seed + 5 * np.arange(channels)) * times) for number in (1, 2, 5))
    return (0.1 * noise / max(1e-9, noise.std()) + 0.1 * tones).astype(np.float32)


def write_sound(path: Path, samples: Floats, *, rate: int = RATE, **options: Any) -> Path:
    """Write samples; return the path. `options`: of soundfile, such as `subtype="PCM_24"`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_exact = not options and path.suffix in (".wav", ".flac")
    soundfile.write(path, np.rint(samples * 32768).clip(-32768, 32767).astype(np.int16) if is_exact else samples, rate, **options)
    return path


def in_16_bits(samples: Floats) -> Floats:
    """What a file of 16 bits gives back."""
    return (np.clip(np.rint(samples * 32768), -32768, 32767) / 32768).astype(np.float32)


def streamed_flac(path: Path, samples: Floats) -> Path:
    """A FLAC file whose header does not say how long it is, as encoders write that cannot go back."""
    write_sound(path, samples)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0  # the total of samples, 36 bits of STREAMINFO
    data[22:26] = bytes(4)
    path.write_bytes(data)
    return path


def with_id3(path: Path) -> Path:
    """The file with an ID3v2 tag before it."""
    body = b"TIT2" + struct.pack(">I", 1025) + bytes(2) + b"\0" + b"x" * 1024
    size = len(body)
    tag = b"ID3\4\0\0" + bytes((size >> shift) & 0x7F for shift in (21, 14, 7, 0)) + body
    path.write_bytes(tag + path.read_bytes())
    return path


def without_info(data: bytes) -> bytes:
    """MP3 without its first frame, which says how many follow."""
    assert b"Xing" in data[:60] or b"Info" in data[:60]
    return data[data.index(data[:2], 4) :]
