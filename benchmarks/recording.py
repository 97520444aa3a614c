"""What deferral costs before any image is made: the CPU time of a Dataset's `__getitem__` while it records, and without deferral.

    python -m benchmarks.recording
    python -m benchmarks.recording --dry-run      # few samples, one round: does it run?

One process and thread fetches batches of the same photographs in turn. Recording includes what the Dataset's own code does either
way: its draws, the calls of its transforms, and opening and reading the file, which is measured alone too.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks import harness
from benchmarks.contenders.own_datasets import OwnDataset, transform_of
from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.data import DEFAULT_DATA, ImageSet, Workshop, describe, prepare, warm
from datapipe.deferral.dataset import DeferringDataset
from datapipe.deferral.requests import BatchRequest

_KINDS = ("path", "functional", "two-crops")
_WAYS = ("recording", "opening", "eager")
_BATCH_SIZE = 64


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording")
    parser.add_argument("--batches", type=int, default=16, help="per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=3000, help="different images")
    parser.add_argument("--copies", type=int, default=4, help="links to each")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    if arguments.dry_run:
        arguments.batches, arguments.rounds, arguments.files, arguments.copies = 1, 1, 2 * _BATCH_SIZE, 1
    torch.set_num_threads(1)
    import_torchvision()
    images = ImageSet("photos", num_files=arguments.files, copies=arguments.copies)
    root = prepare(Workshop(arguments.data), images, ("folder",))
    warm([root / "folder"])
    measured = measure(root / "folder", num_batches=arguments.batches, num_rounds=arguments.rounds)
    result = {"dataset": describe(root), **measured}
    for kind, found in result["kinds"].items():
        recording, opening, eager = (found[f"{name}_us"] for name in _WAYS)
        print(f"{kind:<12} {recording:6.0f} us, {opening:.0f} of them to open the file; without deferral {eager:6.0f} us")
    if not arguments.dry_run:
        harness.save("recording", "benchmarks.recording", result, results=arguments.results)


def measure(root: Path, *, num_batches: int, num_rounds: int) -> dict[str, Any]:
    """CPU time per sample by kind of Dataset, in us: medians over rounds."""
    kinds = {}
    for kind in _KINDS:
        own = OwnDataset(root, kind, transform_of(kind))
        timed = _Timed(own, defers=True)
        timed.stacks = kind != "two-crops"
        rounds = [_round(timed, own, num_batches, start=number * num_batches * _BATCH_SIZE) for number in range(num_rounds + 1)]
        found = zip(*rounds[1:], strict=True)  # in the first one, deferral compares both ways
        kinds[kind] = {f"{way}_us": round(statistics.median(times), 1) for way, times in zip(_WAYS, found, strict=True)}
    return {"settings": {"num_batches": num_batches, "num_rounds": num_rounds, "batch_size": _BATCH_SIZE}, "kinds": kinds}


def _round(timed: _Timed, own: OwnDataset, num_batches: int, *, start: int) -> tuple[float, ...]:
    timed.spent_ns = opening_ns = eager_ns = 0
    for batch in range(num_batches):
        places = [(start + batch * _BATCH_SIZE + number) % len(own) for number in range(_BATCH_SIZE)]
        timed.__getitems__(BatchRequest(places, None))
        began = time.thread_time_ns()
        for place in places:
            Image.open(io.BytesIO(Path(own.files[place][0]).read_bytes()))
        opened = time.thread_time_ns()
        for place in places:
            own[place]
        opening_ns, eager_ns = opening_ns + opened - began, eager_ns + time.thread_time_ns() - opened
    return tuple(spent_ns / (num_batches * _BATCH_SIZE * 1000) for spent_ns in (timed.spent_ns, opening_ns, eager_ns))


class _Timed(DeferringDataset):
    """Adds up the time in which samples are made, with stand-ins in place of their images."""

    spent_ns = 0

    def _make(self, *arguments: Any) -> None:
        began = time.thread_time_ns()
        super()._make(*arguments)
        self.spent_ns += time.thread_time_ns() - began


if __name__ == "__main__":
    main()
