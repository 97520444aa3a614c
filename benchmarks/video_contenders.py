"""One contender of `benchmarks.video`, in its own process: prints CPU milliseconds and wall milliseconds per clip, as JSON.

    python -m benchmarks.video_contenders NAME DIRECTORY CROP

A clip has 8 frames, every fourth one; clips begin every 4 frames. CROP is "resize", the whole frame to 224 x 224, or "crop", a
random part of it, another one for each clip. Batches of 32, shuffled, on two threads or workers.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FRAMES, STRIDE, STEP, SIZE, BATCH_SIZE, WORKERS = 8, 4, 4, 224, 32, 2
CONVERTED = "converted 256p"  # by `datapipe convert --video-size 256 --video-keyframes 16`
CONTENDERS = (
    "torchcodec",
    *(f"datapipe {how}, per_visit {each}" for how in ("exact", "fast") for each in (1, 4, 15)),
    *(f"{CONVERTED}, per_visit {each}" for each in (1, 15)),
)
PEERS = ("torchcodec",)  # in a Python of their own


def by_datapipe(name: str, directory: str, crop: str) -> Iterator[int]:
    """Yield the number of clips of each batch."""
    import datapipe as dp

    how, each = name.removeprefix("datapipe ").split(", per_visit ")
    if how == CONVERTED:
        how, directory = "exact", str(Path(directory).with_name("converted"))
    data = dp.Clips(directory, frames=FRAMES, stride=STRIDE, step=STEP, per_visit=int(each), resize=how)
    transform = dp.transforms.Resize((SIZE, SIZE)) if crop == "resize" else dp.transforms.RandomResizedCrop(SIZE)
    for batch in dp.DataLoader(data, BATCH_SIZE, shuffle=True, seed=0, num_workers=WORKERS, transform=[transform]):
        yield len(batch["video"])


def by_torchcodec(name: str, directory: str, crop: str) -> Iterator[int]:
    """Yield the same of a DataLoader over a Dataset that keeps its decoders open."""
    import torch
    from torchcodec.decoders import VideoDecoder

    torch.manual_seed(0)
    paths = sorted(map(str, Path(directory).glob("*.mp4")))
    num = [(VideoDecoder(path).metadata.num_frames - (FRAMES - 1) * STRIDE - 1) // STEP + 1 for path in paths]
    clips = [(path, STEP * begin) for path, of_video in zip(paths, num, strict=True) for begin in range(of_video)]

    class Videos(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.decoders: dict[str, Any] = {}

        def __len__(self) -> int:
            return len(clips)

        def __getitem__(self, number: int) -> torch.Tensor:
            path, begin = clips[number]
            if path not in self.decoders:
                options = {"transforms": [_resize()]} if crop == "resize" else {}
                self.decoders[path] = VideoDecoder(path, num_ffmpeg_threads=1, **options)
            frames: torch.Tensor = self.decoders[path].get_frames_at(list(range(begin, begin + FRAMES * STRIDE, STRIDE))).data
            if crop == "resize":
                return frames
            scale = float(torch.empty(1).uniform_(0.08, 1.0).sqrt())  # RandomResizedCrop's, of the frame's own aspect
            height, width = (max(1, int(side * scale)) for side in frames.shape[-2:])
            top, left = (
                int(torch.randint(0, side - part + 1, (1,)))
                for side, part in zip(frames.shape[-2:], (height, width), strict=True)
            )
            part = frames[..., top : top + height, left : left + width]
            return torch.nn.functional.interpolate(part, (SIZE, SIZE), mode="bilinear", antialias=True)

    loader = torch.utils.data.DataLoader(Videos(), BATCH_SIZE, shuffle=True, num_workers=WORKERS)
    for batch in loader:
        yield len(batch)


def _resize() -> Any:
    from benchmarks.contenders.torchvision_transforms import import_torchvision

    import_torchvision()  # which torchcodec imports, and whose compiled part need not fit this torch
    from torchcodec.transforms import Resize

    return Resize((SIZE, SIZE))


def main() -> None:
    name, directory, crop = sys.argv[1:4]
    run: Callable[[str, str, str], Iterator[int]] = by_torchcodec if name == "torchcodec" else by_datapipe
    importlib.import_module("torchcodec.decoders" if name == "torchcodec" else "datapipe.kinds.clips.data")  # not timed
    print_cost(run(name, directory, crop))


def print_cost(sizes: Iterator[int]) -> None:
    """Run through batches, of so many clips each, and print what a clip of them costs."""
    begun, started = _cpu_s(), time.perf_counter()
    num = sum(sizes)
    took, wall = _cpu_s() - begun, time.perf_counter() - started
    print(json.dumps({"clips": num, "cpu_ms": took / num * 1e3, "wall_ms": wall / num * 1e3}))


def _cpu_s() -> float:
    """Return the CPU seconds of this process, and of the workers that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


if __name__ == "__main__":
    main()
