"""Measure sound for `datapipe bench`: crops, and whole utterances."""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from typing import Any

import numpy as np

from datapipe.core.printable import counted
from datapipe.errors import OptionError
from datapipe.index.utterances import Utterances
from datapipe.kernel.calibration import in_turns
from datapipe.kinds.audio.data import Audio
from datapipe.kinds.loader import DataLoader

_SECONDS = 5
_BATCH_SIZE = 64
_CROPS: dict[str, Any] = {"seconds": _SECONDS}


def loader(found: Utterances, args: argparse.Namespace, **samples: Any) -> DataLoader:
    """Return a loader of shuffled crops, or of other `samples` as `Audio` takes them."""
    return DataLoader(
        Audio(args.path, rate=_rate(found), skip_bad=True, **(samples or _CROPS)),
        _BATCH_SIZE,
        True,
        seed=0,
        num_workers=args.num_workers,
        device=args.device,
        workers=args.workers,
    )


def _rate(found: Utterances) -> int:
    return int(found.rates[found.num_frames > 0].min(initial=48_000))


def measure(found: Utterances, args: argparse.Namespace) -> dict[str, Any]:
    """Return utterances and seconds of sound per second of shuffled batches, by round."""
    if args.against is not None:
        raise OptionError("--against is for images; crops and whole utterances are measured beside each other")
    samples: dict[str, dict[str, Any]] = {f"crops of {_SECONDS} s": _CROPS, "whole utterances": {"whole": True}}
    loaders = {name: loader(found, args, **what) for name, what in samples.items()}
    rate, rates = _rate(found), found.rates[found.num_frames > 0]
    of_sound: dict[str, list[float]] = {name: [] for name in loaders}

    def measured(name: str) -> float:
        started, num, length = time.perf_counter(), 0, 0
        for batch in loaders[name]:
            num += len(batch["lengths"])
            length += int(batch["lengths"].sum())
            if num >= args.images:
                break
        took = time.perf_counter() - started
        of_sound[name].append(length / rate / took)
        return num / took

    rounds = in_turns({name: functools.partial(measured, name) for name in loaders}, rounds=args.rounds)
    return {
        "utterances": len(found),
        "rate": rate,
        "num_rates": len(np.unique(rates)),
        "batch_size": _BATCH_SIZE,
        "utterances_per_s": {name: round(statistics.median(values), 1) for name, values in rounds.items()},
        "seconds_per_s": {name: round(statistics.median(values[1:]), 1) for name, values in of_sound.items()},
        "rounds": {name: [round(value, 1) for value in values] for name, values in rounds.items()},
    }


def as_text(result: dict[str, Any]) -> str:
    """Return the figures as text for people."""
    lines = [f"{counted(result['utterances'], 'utterance')} at {result['rate']:,} Hz, batches of {result['batch_size']}"]
    for name, rate in result["utterances_per_s"].items():
        lines.append(f"  {name:<18}{rate:>10,.1f} a second, {result['seconds_per_s'][name]:,.0f} s of sound")
    return "\n".join(lines)
