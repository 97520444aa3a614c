"""Passes over Datasets as people write them, in torch's loader and in the same one taken over by `from_torch`, in turn.

Counted is the CPU time of all processes, from the beginning of a pass to its end, and the clock's. Both loaders have two workers,
batches of 32, and are read in one process, each in every other pass, after some passes of each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

import datapipe
from benchmarks import harness
from benchmarks.contenders import OWN_DATASETS
from benchmarks.contenders.own_datasets import own_dataset
from benchmarks.contenders.own_recipes import mixed
from benchmarks.contenders.public_styles import STYLES
from benchmarks.contenders.torchvision_transforms import import_torchvision
from benchmarks.ratios import ratio_of

BATCH_SIZE = 32
TITLES = OWN_DATASETS | {kind: style.title for kind, style in STYLES.items()}


class Length(NamedTuple):
    """How long passes are, how many of each loader are measured, and whether workers persist."""

    name: str
    num_samples: int
    num_pairs: int
    persists: bool = False


LENGTHS = (Length("200", 200, 8), Length("200, workers persist", 200, 6, persists=True), Length("1600", 1600, 3))


def measure(folder: Path, kinds: Iterable[str], lengths: Iterable[Length] = LENGTHS) -> dict[str, Any]:
    """Return {kind: {"title", "lengths": {length: ratios and times}}}. Names kinds whose packages are missing."""
    found: dict[str, Any] = {}
    for kind in kinds:
        missing = STYLES[kind].missing() if kind in STYLES else []
        if missing:
            print(f"{kind} is left out: pip install {' '.join(missing)}")
            continue
        of_kind: dict[str, Any] = {}
        for length in lengths:
            module = ["benchmarks.passes", str(folder), kind, *map(str, length)]
            of_kind[length.name] = one = harness.run_contender(kind, module, environment={"OMP_NUM_THREADS": "2"})
            print(f"{kind:<16} {length.name:<22} CPU {one['cpu']['ratio']:.2f}  wall {one['wall']['ratio']:.2f}", flush=True)
        found[kind] = {"title": TITLES[kind], "lengths": of_kind}
    return found


def compare(folder: Path, kind: str, length: Length) -> dict[str, Any]:
    """Return the ratios of one kind in one length, above 1 where `from_torch` takes less, and the seconds that they took."""
    import_torchvision()
    torch.manual_seed(0)
    theirs, inner = (loader_of(folder, kind, length) for _ in range(2))
    ours = datapipe.from_torch(inner, device="cpu", seed=1)
    first = _pass(ours)
    _pass(theirs)
    for _ in range(2 if length.num_samples < 1000 else 0):
        _pass(ours)
        _pass(theirs)
    times: dict[str, list[tuple[float, float]]] = {"torch": [], "ours": []}
    for number in range(length.num_pairs):
        for name in ("torch", "ours") if number % 2 else ("ours", "torch"):
            times[name].append(_pass(theirs if name == "torch" else ours))
    ratios = {}
    for place, name in enumerate(("cpu", "wall")):
        rates = [[1 / one[place] for one in times[who]] for who in ("ours", "torch")]
        ratios[name] = dataclasses.asdict(ratio_of(*rates))
    seconds = {
        f"{who}_{name}_s": round(statistics.median(one[place] for one in times[who]), 4)
        for who in times
        for place, name in enumerate(("cpu", "wall"))
    }
    return {**ratios, **seconds, "first_pass_cpu_s": round(first[0], 4)}


def loader_of(folder: Path, kind: str, length: Length, *, num_workers: int = 2) -> Any:
    """Return torch's loader over a kind of Dataset."""
    options: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": length.persists and num_workers > 0}
    if kind in STYLES:
        style = STYLES[kind]
        options |= {"collate_fn": style.collate_fn} | ({} if style.shuffles is None else {"shuffle": style.shuffles})
        return DataLoader(style.make(folder, length.num_samples), BATCH_SIZE, **options)
    collate = mixed if kind == "random-collate" else None
    return DataLoader(own_dataset(folder, kind, length.num_samples), BATCH_SIZE, shuffle=True, collate_fn=collate, **options)


def _pass(loader: Any) -> tuple[float, float]:
    """Take all batches; return the seconds of CPU of this process and its workers, and those of the clock."""
    cpu, wall = _cpu_seconds(), time.perf_counter()
    for _ in loader:
        pass
    wall = time.perf_counter() - wall
    return _cpu_seconds() - cpu, wall


def _cpu_seconds() -> float:
    """Return the seconds of CPU of this process, of its children that ended, and of those that live."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    alive = [child.pid for child in multiprocessing.active_children() if child.pid is not None]  # and lets ended ones go
    return sum(map(_seconds_of, alive)) + sum(one.ru_utime + one.ru_stime for one in usages)


def _seconds_of(pid: int) -> float:
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9
    except FileNotFoundError:  # the kernel does not count nanoseconds
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.passes", description="One kind in one length, in this process.")
    for name in ("folder", "kind", "name", "num_samples", "num_pairs", "persists"):
        parser.add_argument(name)
    given = parser.parse_args()
    length = Length(given.name, int(given.num_samples), int(given.num_pairs), given.persists == "True")
    print(json.dumps(compare(Path(given.folder), given.kind, length)))


if __name__ == "__main__":
    main()
