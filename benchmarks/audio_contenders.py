"""One contender of `benchmarks.audio`, in its own process: prints CPU and wall milliseconds per crop, as JSON.

    python -m benchmarks.audio_contenders NAME DIRECTORY

Crops of 5 s from FLAC at its own rate, in batches of 64, shuffled, on two threads or workers, until 40 batches are made.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.video_contenders import print_cost

SECONDS, RATE, BATCH_SIZE, WORKERS, STEPS = 5, 16_000, 64, 2, 40
CONTENDERS = ("torchcodec", "soundfile", "datapipe")
PEERS = ("torchcodec",)  # in a Python of their own


def by_datapipe(directory: str) -> Iterator[int]:
    """Yield the number of crops of each batch."""
    import datapipe as dp

    data = dp.Audio(directory, seconds=SECONDS, rate=RATE)
    loader = dp.DataLoader(data, BATCH_SIZE, shuffle=True, seed=0, num_workers=WORKERS, drop_last=True)
    while True:
        for batch in loader:
            yield len(batch["audio"])


def by_soundfile(directory: str) -> Iterator[int]:
    """Yield the same of a DataLoader whose Dataset reads the crop alone."""
    import soundfile
    import torch

    def crop(path: str) -> torch.Tensor:
        with soundfile.SoundFile(path) as sound:
            first = int(torch.randint(0, max(1, sound.frames - SECONDS * RATE + 1), (1,)))
            sound.seek(first)
            found = torch.from_numpy(sound.read(SECONDS * RATE, dtype="float32"))
        return torch.nn.functional.pad(found, (0, SECONDS * RATE - len(found)))

    return _by_torch(directory, crop)


def by_torchcodec(directory: str) -> Iterator[int]:
    """Yield the same of a DataLoader over torchcodec's decoder, which is asked for the crop alone."""
    import torch
    from torchcodec.decoders import AudioDecoder

    def crop(path: str) -> torch.Tensor:
        decoder = AudioDecoder(path)
        length = decoder.metadata.duration_seconds_from_header or SECONDS
        first = float(torch.rand(1)) * max(0.0, length - SECONDS)
        found = decoder.get_samples_played_in_range(first, first + SECONDS).data[0, : SECONDS * RATE]
        return torch.nn.functional.pad(found, (0, SECONDS * RATE - len(found)))

    return _by_torch(directory, crop)


def _by_torch(directory: str, crop: Callable[[str], Any]) -> Iterator[int]:
    import torch

    paths = sorted(map(str, Path(directory).glob("*.flac")))

    class Sounds(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, number: int) -> Any:
            return crop(paths[number])

    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        Sounds(), BATCH_SIZE, shuffle=True, num_workers=WORKERS, drop_last=True, persistent_workers=True
    )
    while True:
        for batch in loader:
            yield len(batch)


def main() -> None:
    name, directory = sys.argv[1:3]
    run, needed = {
        "datapipe": (by_datapipe, "datapipe.kinds.audio.data"),
        "soundfile": (by_soundfile, "soundfile"),
        "torchcodec": (by_torchcodec, "torchcodec.decoders"),
    }[name]
    importlib.import_module(needed)  # not timed
    print_cost(_first(run(directory)))


def _first(batches: Iterator[int]) -> Iterator[int]:
    """Yield the sizes of the first batches, and let the workers end, whose time counts."""
    yield from itertools.islice(batches, STEPS)
    batches.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
