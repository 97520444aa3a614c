"""Measure clips of videos for `datapipe bench`: each by itself, and several of a stretch decoded together."""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from typing import Any

from datapipe import transforms
from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.index.clips import VideoParts
from datapipe.kernel.calibration import in_turns
from datapipe.kernel.processes import await_launcher
from datapipe.kinds.clips.data import Clips
from datapipe.kinds.clips.process_workers import IMPORTS
from datapipe.kinds.loader import DataLoader
from datapipe.opening.videos.lerobot import is_lerobot

_FRAMES, _STRIDE, _STEP = 8, 4, 4
_BATCH_SIZE = 16
_PER_VISIT = (1, 4, 16)
_CLIPS = {"frames": _FRAMES, "stride": _STRIDE, "step": _STEP, "skip_bad": True}


def loader(parts: VideoParts, args: argparse.Namespace, per_visit: int = _PER_VISIT[1]) -> DataLoader:
    """Return a loader of shuffled clips, `per_visit` of each stretch of a video."""
    clips: dict[str, Any] = {} if is_lerobot(args.path) else _CLIPS
    return DataLoader(
        Clips(args.path, per_visit=per_visit, **clips),
        _BATCH_SIZE,
        True,
        seed=0,
        num_workers=args.num_workers,
        device=args.device,
        transform=[transforms.RandomResizedCrop(args.size)],
        workers=args.workers,
    )


def measure(parts: VideoParts, args: argparse.Namespace) -> dict[str, Any]:
    """Return clips per second of shuffled batches, by the clips of a visit and by round."""
    if args.against is not None:
        raise OptionError("--against is for images; numbers of clips of a visit are measured beside each other")
    is_of_episodes = is_lerobot(args.path)
    loaders = {f"per_visit={each}": loader(parts, args, each) for each in _PER_VISIT}

    def rate(loader: DataLoader) -> float:
        started = time.perf_counter()
        num = 0
        for batch in loader:
            num += len(next(iter(batch.values())))
            if num >= args.images:
                break
        return num / (time.perf_counter() - started)

    await_launcher(IMPORTS, loaders[f"per_visit={_PER_VISIT[0]}"].num_workers)
    rates = in_turns({name: functools.partial(rate, loader) for name, loader in loaders.items()}, rounds=args.rounds)
    return {
        "videos": len(parts.videos),
        "frames": 1 if is_of_episodes else _FRAMES,
        "stride": 1 if is_of_episodes else _STRIDE,
        "size": args.size,
        "batch_size": _BATCH_SIZE,
        "clips_per_s": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "rounds": {name: [round(value, 1) for value in values] for name, values in rates.items()},
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text for people."""
    lines = [
        f"{counted(result['videos'], 'video')}: clips of {result['frames']} frames, stride {result['stride']},"
        f" random crops of {result['size']}, batches of {result['batch_size']}"
    ]
    lines += [f"  {name:<14}{rate:>10,.1f} clips/s" for name, rate in result["clips_per_s"].items()]
    return "\n".join(lines)
