"""What a `datapipe.Monitor` that stays in costs a training: steps of 20 ms, bare steps, and bare steps after many of them.

    python -m benchmarks.monitor_cost
    python -m benchmarks.monitor_cost --dry-run      # few steps, one round: does it run?

Each run is a fresh process; runs with and without the monitor alternate. Steps of 20 ms multiply matrices, after which Python's
code is no longer in the CPU's caches; measured is the CPU time of the training thread in `next()`, and that of all other threads,
one of which makes figures every 100 steps. What these take from the training is that time at most. Bare steps show the cost in
warm caches: at the beginning, and at the end of 100,000 steps, where everything that a monitor keeps is full. They have no
figures. Before the first of them garbage is collected: the objects of 2,000 steps bring the interpreter's next full collection
forward, which takes 100 ms once torch is imported, and comes as seldom as before.
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
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.attach_cost import Numbers

STEP_S = 0.02
_FIRST = 250  # steps of 20 ms that are left out: they import what makes the first figures
_WARM, _AT_AN_END = 64, 2000  # bare steps that are left out at the beginning; steps whose cost is compared
_NEVER = 1 << 40


def main() -> None:
    arguments = _parse()
    if arguments.once:
        kind, _, variant = arguments.once.partition(" ")
        print(json.dumps(RUNS[kind](arguments.steps, is_monitored=variant == "monitored")))
        return
    num_long, num_short = (400, 6000) if arguments.dry_run else (1000, 100_000)
    long: dict[str, list[dict[str, float]]] = {"alone": [], "monitored": []}
    short: dict[str, list[dict[str, float]]] = {"alone": [], "monitored": []}
    for number in range(arguments.rounds):
        for variant in list(long)[:: -1 if number % 2 else 1]:
            long[variant].append(_run("long", variant, num_long))
            short[variant].append(_run("short", variant, num_short))
            print(f"round {number + 1}/{arguments.rounds}  {variant:<9} {long[variant][-1]}  {short[variant][-1]}", flush=True)
    result = {"settings": {"steps_of_20_ms": num_long, "bare_steps": num_short, "num_rounds": arguments.rounds}}
    result |= summarise(long, short)
    print("\n".join(as_lines(result)))
    if not arguments.dry_run:
        harness.save("monitor-cost", "benchmarks.monitor_cost", result, results=arguments.results)


def long_steps(num_steps: int, *, is_monitored: bool) -> dict[str, float]:
    """CPU time in us per step: of the training thread in next(), between steps that multiply matrices, and of all others."""
    import torch

    torch.set_num_threads(1)
    matrix, iterator = torch.randn(400, 400), iter(_loader(num_steps + 2 * _FIRST, is_monitored=is_monitored, every=100))
    in_next_ns = others_s = 0.0
    for number in range(num_steps + _FIRST):
        begun_ns = time.thread_time_ns()
        next(iterator)
        in_next_ns += time.thread_time_ns() - begun_ns
        until_s = time.perf_counter() + STEP_S
        while time.perf_counter() < until_s:
            matrix @ matrix
        if number + 1 == _FIRST:
            in_next_ns, others_s = 0.0, time.process_time() - time.thread_time()
    others_s = time.process_time() - time.thread_time() - others_s
    return {"next_us": in_next_ns * 1e-3 / num_steps, "others_us": others_s / num_steps * 1e6}


def short_steps(num_steps: int, *, is_monitored: bool) -> dict[str, float]:
    """Wall time in us per step of the first steps and of the last ones, and what the process's memory grew by between them."""
    marks = {_WARM, _WARM + _AT_AN_END, num_steps - _AT_AN_END, num_steps}
    times: list[float] = []
    peaks: list[float] = []
    for number, _ in enumerate(_loader(num_steps + 1, is_monitored=is_monitored, every=_NEVER)):
        if number == _WARM:
            gc.collect()
        if number in marks:
            times.append(time.perf_counter())
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return {
        "first_us": (times[1] - times[0]) / _AT_AN_END * 1e6,
        "last_us": (times[3] - times[2]) / _AT_AN_END * 1e6,
        "grown_mb": peaks[3] - peaks[0],
    }


RUNS = {"long": long_steps, "short": short_steps}


def _loader(num_steps: int, *, is_monitored: bool, every: int) -> Any:
    from torch.utils.data import DataLoader

    numbers: Any = Numbers(num_steps * 4, None)
    loader: Any = DataLoader(numbers, batch_size=4, collate_fn=_first)
    if not is_monitored:
        return loader
    from datapipe import Monitor

    return Monitor(loader, every=every, log=lambda figures, step: None, saves=os.environ["SAVES"])


def _first(samples: list[int]) -> int:
    return samples[0]


def _run(kind: str, variant: str, num_steps: int) -> dict[str, float]:
    module = ["benchmarks.monitor_cost", "--once", f"{kind} {variant}", "--steps", str(num_steps)]
    with tempfile.TemporaryDirectory() as saves:
        measured: dict[str, float] = harness.run_contender(module[0], module, environment={"SAVES": saves}, is_silent=True)
        files = [path.stat().st_size for path in Path(saves).iterdir()]
    return measured | ({"saved_mb": sum(files) / 1e6} if variant == "monitored" else {})


def summarise(long: dict[str, list[dict[str, float]]], short: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians over rounds of what a step costs more with the monitor."""

    def more(of: dict[str, list[dict[str, float]]], name: str) -> float:
        return statistics.median(b[name] - a[name] for a, b in zip(of["alone"], of["monitored"], strict=True))

    next_us, others_us = more(long, "next_us"), more(long, "others_us")
    cpu_us = next_us + others_us
    return {
        "steps_of_20_ms": {
            "cost_cpu_us": round(cpu_us, 1),
            "cost_in_next_us": round(next_us, 1),
            "cost_others_us": round(others_us, 1),
            "share": round(cpu_us / (STEP_S * 1e6), 5),
            "saved_mb": round(statistics.median(one["saved_mb"] for one in long["monitored"]), 2),
        },
        "bare_steps": {
            "cost_first_us": round(more(short, "first_us"), 1),
            "cost_last_us": round(more(short, "last_us"), 1),
            "grown_mb": round(more(short, "grown_mb"), 1),
            "saved_mb": round(statistics.median(one["saved_mb"] for one in short["monitored"]), 2),
        },
    }


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    long, short = result["steps_of_20_ms"], result["bare_steps"]
    return [
        f"a step of 20 ms: {long['cost_cpu_us']:.0f} us of CPU time more, {long['share']:.2%} of it",
        f"a bare step: {short['cost_first_us']:.0f} us more at first, {short['cost_last_us']:.0f} us after 100,000 steps",
        f"memory: {short['grown_mb']:.0f} MB more; saved: {short['saved_mb']:.1f} MB",
    ]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitor_cost", description="What a Monitor costs a step.")
    parser.add_argument("--rounds", type=int, help="default: 7; 1 with --dry-run")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="few steps, one round, nothing saved")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.dry_run else 7)
    return arguments


if __name__ == "__main__":
    main()
