"""A little data of this kind for trials: what compresses as speech does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datapipe.codecs.audio.library import import_soundfile

TITLE = "sound"
RATE = 16_000  # Hz
_NUM_FILES = 60


def convert_options(path: Path) -> list[str]:
    """Return the options of `datapipe convert` for what was made there: none, as it is loaded where it lies."""
    return []


def make(path: Path, num_files: int = _NUM_FILES) -> None:
    """Write FLAC files of 10 to 20 seconds at 16 kHz to `path/NNNN.flac`. Raises DependencyError without soundfile."""
    soundfile = import_soundfile()
    path.mkdir(parents=True)
    for number in range(num_files):
        rng = np.random.default_rng(number)
        soundfile.write(path / f"{number:04d}.flac", speech_like(rng, float(rng.uniform(10, 20))), RATE)


def speech_like(rng: np.random.Generator, seconds: float) -> NDArray[np.float32]:
    """Return (n,) samples in [-1, 1]: harmonics whose pitch wanders, in syllables, over some noise."""
    num = int(seconds * RATE)
    times = np.arange(num) / RATE
    slow, fast = np.arange(0, seconds + 1, 0.3), np.arange(0, seconds + 1, 0.1)
    pitch = 120 * np.exp(0.2 * np.interp(times, slow, rng.normal(size=len(slow))))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    syllables = np.interp(times, fast, rng.random(len(fast)) ** 2)
    voice = sum(np.sin(number * phase + rng.random()) / number**1.2 for number in range(1, 20))
    found: NDArray[np.float32] = (0.08 * syllables * voice + rng.normal(0, 0.004, num)).astype(np.float32)
    return found
