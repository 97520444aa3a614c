"""What `datapipe diagnose` costs a training step: loops whose own work is next to nothing, alone and attached.

    python -m benchmarks.attach_cost
    python -m benchmarks.attach_cost --dry-run      # few steps, one round: does it run?

Each round runs all loops in a fresh process without the attachment and in one with it; which comes first alternates. The
loops read nothing and compute nothing, so that what is left is the loader's own work and what measuring adds to it. A
step's time is the mean over all steps, since only some batches are looked into. Left out are the first steps of each loop,
and garbage of what came before: Python's collector is run ahead of each loop.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness

_NUM_WARM = 64  # steps


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over a torch loader of integers."""

    batch_size: int
    num_workers: int
    chain: str | None  # the profile with five transforms for each sample; None: no profile


LOOPS = {
    "bare, batch 4": Loop(4, 0, None),
    "bare, batch 4, 2 workers": Loop(4, 2, None),
    "5 transforms, batch 256": Loop(256, 0, "own"),
    "5 transforms, batch 256, 2 workers": Loop(256, 2, "own"),
    "torchvision's Compose of 5, batch 256": Loop(256, 0, "torchvision"),
}


def main() -> None:
    arguments = _parse()
    if arguments.once:
        print(json.dumps({name: measure(LOOPS[name], arguments.steps) for name in arguments.once.split("; ")}))
        return
    names = [name for name, loop in LOOPS.items() if loop.chain != "torchvision" or _torchvision() is not None]
    rounds: dict[str, list[dict[str, list[float]]]] = {"alone": [], "attached": []}
    for number in range(arguments.rounds):
        for variant in list(rounds)[:: -1 if number % 2 else 1]:
            rounds[variant].append(_run(names, arguments.steps, is_attached=variant == "attached"))
            shown = "  ".join(f"{wall_us:6.0f}" for wall_us, _ in rounds[variant][-1].values())
            print(f"round {number + 1}/{arguments.rounds}  {variant:<9} {shown} us per step", flush=True)
    result = {"settings": {"num_steps": arguments.steps, "num_rounds": arguments.rounds}, "loops": summarise(rounds)}
    print("\n".join(as_lines(result)))
    if not arguments.dry_run:
        harness.save("attach-cost", "benchmarks.attach_cost", result, results=arguments.results)


def measure(loop: Loop, num_steps: int) -> tuple[float, float]:
    """Wall time and CPU time of this process and its workers, in us per step."""
    from torch.utils.data import DataLoader

    numbers: Any = Numbers((num_steps + _NUM_WARM) * loop.batch_size, _chain(loop.chain))
    context = "fork" if loop.num_workers else None
    loader: Any = DataLoader(
        numbers, batch_size=loop.batch_size, num_workers=loop.num_workers, collate_fn=_first, multiprocessing_context=context
    )
    cpu_s = _cpu_s()
    iterator = iter(loader)
    for _ in range(_NUM_WARM):
        next(iterator)
    gc.collect()
    if not loop.num_workers:
        cpu_s = _cpu_s()
    started = time.perf_counter()
    for _ in range(num_steps):
        next(iterator)
    wall_s = time.perf_counter() - started
    del iterator  # ends the workers, whose time is known from then on
    num_counted = num_steps + (_NUM_WARM if loop.num_workers else 0)
    return wall_s / num_steps * 1e6, (_cpu_s() - cpu_s) / num_counted * 1e6


class Numbers:
    """Sample i is i, transformed."""

    def __init__(self, num: int, transform: Callable[[int], int] | None) -> None:
        self.num, self.transform = num, transform

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> int:
        return index if self.transform is None else self.transform(index)


class Chain:
    """As libraries compose transforms."""

    def __init__(self, transforms: list[Callable[[int], int]]) -> None:
        self.transforms = transforms

    def __call__(self, value: int) -> int:
        for transform in self.transforms:
            value = transform(value)
        return value


class Add:
    """A transform that costs next to nothing."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, value: int) -> int:
        return value + self.value


def _chain(kind: str | None) -> Callable[[int], int] | None:
    parts: list[Callable[[int], int]] = [Add(number) for number in range(5)]
    if kind is None:
        return None
    made: Callable[[int], int] = (Chain if kind == "own" else _torchvision())(parts)
    return made


def _torchvision() -> Any:
    """Its Compose; None where torchvision is not installed."""
    try:
        from benchmarks.contenders.torchvision_transforms import import_torchvision

        import_torchvision()
        from torchvision.transforms import Compose
    except ImportError:
        return None
    return Compose


def _first(samples: list[int]) -> int:
    return samples[0]


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _run(names: list[str], num_steps: int, *, is_attached: bool) -> dict[str, list[float]]:
    from datapipe.instruments.attach.launching import child_environment
    from datapipe.instruments.attach.settings import RECORDING
    from datapipe.instruments.measure.recorded import SUFFIX

    module = ["benchmarks.attach_cost", "--once", "; ".join(names), "--steps", str(num_steps)]
    environment: Mapping[str, str] = {}
    with tempfile.TemporaryDirectory() as results:
        if is_attached:
            environment = child_environment({**os.environ, "OMP_NUM_THREADS": "1"}, Path(results), open_watch=RECORDING)
        measured: dict[str, list[float]] = harness.run_contender(module[0], module, environment=environment, is_silent=True)
        if is_attached and not list(Path(results).glob(f"*{SUFFIX}")):
            raise SystemExit("the attached process has measured nothing")
    return measured


def summarise(rounds: dict[str, list[dict[str, list[float]]]]) -> dict[str, Any]:
    """Per loop: medians over rounds in us per step, and the median of what a round's attached run takes more, with quartiles."""
    loops = {}
    for name in rounds["alone"][0]:
        entry: dict[str, Any] = {}
        for place, kind in enumerate(("wall_us", "cpu_us")):
            alone, attached = ([one[name][place] for one in rounds[variant]] for variant in ("alone", "attached"))
            more = [b - a for a, b in zip(alone, attached, strict=True)]
            entry[kind] = {
                "alone": round(statistics.median(alone), 1),
                "attached": round(statistics.median(attached), 1),
                "cost": round(statistics.median(more), 1),
                "quartiles": [round(value, 1) for value in statistics.quantiles(more, n=4)[::2]] if len(more) > 1 else None,
            }
        loops[name] = entry
    return loops


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    lines = [f"{'us per step':<40} {'alone':>8} {'attached':>9} {'cost':>7} {'cost in CPU':>12}"]
    for name, entry in result["loops"].items():
        wall, cpu = entry["wall_us"], entry["cpu_us"]
        lines.append(f"{name:<40} {wall['alone']:8.0f} {wall['attached']:9.0f} {wall['cost']:7.0f} {cpu['cost']:12.0f}")
    return lines


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attach_cost", description="What attaching costs a step.")
    parser.add_argument("--steps", type=int, help="of each loop (default: 2000; 100 with --dry-run)")
    parser.add_argument("--rounds", type=int, help="default: 15; 1 with --dry-run")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="few steps, one round, nothing saved")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or (100 if arguments.dry_run else 2000)
    arguments.rounds = arguments.rounds or (1 if arguments.dry_run else 15)
    return arguments


if __name__ == "__main__":
    main()
