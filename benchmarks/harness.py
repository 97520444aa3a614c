"""Alternated rounds: every contender once per round, each in a fresh process; medians and ratios to a file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.environment import ROOT, command_of, describe_environment
from benchmarks.ratios import ratio_of, rotated
from benchmarks.task import Task

RESULTS = Path(__file__).parent / "results"
_LIMIT_S = 600  # of one round of one contender


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender with the data that it reads."""

    name: str  # in the result
    task: Task
    python: str = sys.executable


def task_of(contender: str, root: Path, arguments: argparse.Namespace) -> Task:
    """Return the task of a contender over a set, by the options of a benchmark; on as many cores as it has threads."""
    return Task(
        contender=contender,
        data=str(root.resolve()),
        batch_size=arguments.batch_size,
        num_threads=arguments.threads,
        warmup_images=arguments.warmup_images,
        num_images=arguments.images,
        cores=tuple(sorted(os.sched_getaffinity(0))[: arguments.threads]),
    )


def settings_of(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the options of such tasks as results record them."""
    return {
        "batch_size": arguments.batch_size,
        "num_threads": arguments.threads,
        "warmup_images": arguments.warmup_images,
        "num_images": arguments.images,
        "num_rounds": arguments.rounds,
    }


def run_rounds(entries: list[Entry], num_rounds: int) -> dict[str, list[dict[str, Any]]]:
    """name -> one measurement per round. Raises SystemExit with a contender's own words if it fails."""
    by_name = {entry.name: entry for entry in entries}
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in by_name}
    for number in range(num_rounds):
        for name in rotated(list(by_name), number):
            measured = _run(by_name[name])
            rounds[name].append(measured)
            print(f"round {number + 1}/{num_rounds}  {name:<16} {measured['images_per_s']:8.0f} images/s", flush=True)
    return rounds


def _run(entry: Entry) -> dict[str, Any]:
    measured: dict[str, Any] = run_contender(entry.name, ["benchmarks.measure", entry.task.to_json()], python=entry.python)
    return measured


def run_contender(
    name: str,
    module: list[str],
    *,
    python: str = sys.executable,
    limit_s: float = _LIMIT_S,
    environment: Mapping[str, str] | None = None,
    is_silent: bool = False,
) -> Any:
    """Return what a module with its arguments, run in a fresh process, prints as JSON in its last line.

    Raises SystemExit with the contender's own words if it fails, takes longer than `limit_s`, or writes anything to the standard
    error, warnings included, although it `is_silent`.
    """
    # A thread pool per decoding thread would fight for the cores, so libraries get one thread each.
    settings = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        **({} if is_silent else {"PYTHONWARNINGS": "ignore"}),
        **(environment or {}),
    }
    try:
        done = subprocess.run([python, "-m", *module], cwd=ROOT, env=settings, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as exc:
        raise SystemExit(f"{name}: no result within {limit_s:g} s") from exc
    if done.returncode != 0 or not done.stdout.strip() or (is_silent and done.stderr):
        raise SystemExit(f"{name} failed (exit {done.returncode}):\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_arguments(parser: argparse.ArgumentParser, *, rounds: int, scratch: str) -> argparse.Namespace:
    """Add the options of a run over data that it makes, and parse all. `rounds`: by default; `scratch`: what data, how large."""
    parser.add_argument("--rounds", type=int, help=f"default: {rounds}; 1 with --dry-run")
    parser.add_argument("--scratch", type=Path, help=f"directory for {scratch}; default: the system's")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="little of everything, one round, nothing saved")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.dry_run else rounds)
    return arguments


def summarise(rounds: dict[str, list[dict[str, Any]]], *, against: str) -> dict[str, Any]:
    """Medians, spreads, and the ratio of `against` to each other contender."""
    rates = {name: [measured["images_per_s"] for measured in of_one] for name, of_one in rounds.items()}
    contenders = {
        name: {
            "title": CONTENDERS[name].title if name in CONTENDERS else name,
            "median": round(statistics.median(values), 1),
            "lowest": round(min(values), 1),
            "highest": round(max(values), 1),
            "rounds": [round(value, 1) for value in values],
            "own_cpu_s_per_1000": round(statistics.median(m["own_cpu_s"] / m["num_images"] for m in rounds[name]) * 1000, 3),
            "first_batch_s": round(statistics.median(m["first_batch_s"] for m in rounds[name]), 3),
            "peak_rss_mb": round(statistics.median(m["peak_rss_mb"] for m in rounds[name])),
            "versions": rounds[name][0]["versions"],
        }
        for name, values in rates.items()
    }
    others = {name: values for name, values in rates.items() if name != against}
    ratios = {f"{against} / {name}": dataclasses.asdict(ratio_of(rates[against], values)) for name, values in others.items()}
    return {"contenders": contenders, "ratios": ratios}


def save(name: str, module: str, result: dict[str, Any], *, results: Path = RESULTS) -> Path:
    """Write `results/NAME.json` with the machine and the command that makes it again."""
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{name}.json"
    value = {"name": name, "command": command_of(module), "environment": describe_environment(), **result}
    path.write_text(json.dumps(value, indent=1) + "\n")
    print(f"wrote {path}")
    return path
