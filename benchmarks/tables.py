"""Rows per second of shuffled batches from a table, against a bare read and what people write by hand.

    python -m benchmarks.tables
    python -m benchmarks.tables --dry-run      # few rows, one round: does it run?

A generated table shaped like Criteo's: 13 float32 and 26 int64 columns and a label, snappy; and one of the same columns whose
values hardly compress ("noise"). Each contender runs once per round in a fresh process, in rotated order, with the page cache
warm. What imports take is not counted; a first epoch opens the file and touches its memory for the first time. `lock` is the
share of time in which Python's global lock was found held while batches of 65,536 rows were made; `memory` is the growth of the
process from before the loader is made, for tables of one length and of twice that.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.environment import ROOT
from benchmarks.ratios import ratio_of, rotated
from benchmarks.table_contenders import CONTENDERS, NOISE, write_noise
from datapipe.diagnostics.ceilings.lock_watch import offer, report_span, watch
from datapipe.kinds.tables.trial_data import DENSE, GROUP_ROWS, IDS, make

# (contender, against, the least that speed over speed may be)
BARS = (
    ("datapipe, 65,536", "bare", 0.45),
    ("noise: datapipe, 65,536", "noise: bare", 0.6),
    ("datapipe, 65,536, first epoch", "DuckDB by hand, first pass", 1.5),
    ("datapipe, 65,536", "DuckDB by hand", 1.0),
    ("datapipe, 65,536", "Arrow take by hand", 1.3),
    ("row-major, 65,536", "bare", 1.5),
    ("TensorDataset, from_torch", "TensorDataset, torch", 20.0),
    ("datapipe, 4,096", "Hugging Face, shuffled", 10.0),
)
MAX_ORDER_NS = 30.0
MAX_HELD_MS = 1.5


def main() -> None:
    arguments = _parse()
    if arguments.once:
        kind, name, path = arguments.once
        {"measure": _measure, "lock": _hold, "memory": _grow}[kind](name, Path(path))
        return
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        path, twice, noise = (Path(scratch) / f"{name}.parquet" for name in ("once", "twice", "noise"))
        make(path, arguments.rows)
        make(twice, 2 * arguments.rows)
        write_noise(noise, arguments.rows)
        has_duckdb = _has_duckdb()
        names = [name for name in CONTENDERS if has_duckdb or not name.startswith("DuckDB")]
        rounds: dict[str, list[list[float]]] = {name: [] for name in names}
        for number in range(arguments.rounds):
            for name in rotated(names, number):
                rounds[name].append(_run("measure", name, noise if name.startswith(NOISE) else path, scratch)["spent"])
                clock, cpu = rounds[name][-1]
                print(f"round {number + 1}/{arguments.rounds}  {name:<28} {clock:9.0f} ns/row {cpu:9.0f} of CPU", flush=True)
        spans = watch([sys.executable, "-m", *_once("lock", "-", path)], _environment(scratch), cwd=ROOT)
        held = [span["held"] * (span["end_s"] - span["start_s"]) / span["batches"] * 1e3 for span in spans]
        grown = [_run("memory", "-", one, scratch)["mb"] for one in (path, twice)]
    result = {
        "settings": {"num_rows": arguments.rows, "num_rounds": arguments.rounds, "num_threads": arguments.threads},
        **summarise(rounds),
        "lock_held_ms_per_batch": round(statistics.median(held), 2),
        "memory_mb": {"rows": round(grown[0]), "twice the rows": round(grown[1])},
    }
    print("\n".join(as_lines(result)))
    if not arguments.dry_run:
        harness.save("tables", "benchmarks.tables", result, results=arguments.results)


def summarise(rounds: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Medians in ns per row, and speeds against what the bars name."""
    against = {}
    for name, other, least in BARS:
        if name in rounds and other in rounds:
            clock, cpu = (ratio_of(_part(rounds[other], part), _part(rounds[name], part)) for part in (0, 1))
            against[f"{name} / {other}"] = {**dataclasses.asdict(clock), "bar": least, "cpu": dataclasses.asdict(cpu)}
    medians = {
        key: {name: round(statistics.median(_part(values, part)), 1) for name, values in rounds.items()}
        for part, key in enumerate(("ns_per_row", "cpu_ns_per_row"))
    }
    return {**medians, "rounds": rounds, "speed": against}


def _part(values: list[list[float]], part: int) -> list[float]:
    return [value[part] for value in values]


def as_lines(result: dict[str, Any]) -> list[str]:
    """The figures in words."""
    cpu = result["cpu_ns_per_row"]
    lines = [f"{name:<28} {value:9.0f} ns/row {cpu[name]:9.0f} of CPU" for name, value in result["ns_per_row"].items()]
    for name, ratio in result["speed"].items():
        verdict = "holds" if ratio["ratio"] >= ratio["bar"] else "MISSED"
        interval = f"{ratio['ratio']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        lines.append(f"{name}: {interval}, bar {ratio['bar']}x {verdict}; by CPU {ratio['cpu']['ratio']:.2f}x")
    lines.append(f"order {result['ns_per_row']['order alone']:.1f} ns/row, bar {MAX_ORDER_NS:g}")
    lines.append(f"lock held {result['lock_held_ms_per_batch']} ms per batch of 65,536 rows, bar {MAX_HELD_MS:g}")
    lines.append(f"memory: {result['memory_mb']}")
    return lines


# -- in a process of its own ------------------------------------------------------------------------


def _measure(name: str, path: Path) -> None:
    print(json.dumps({"spent": CONTENDERS[name](path)}))


def _loader(path: Path) -> Any:
    import datapipe as dp

    return dp.TableLoader(path, 65536, True, label="label", columns={"dense": DENSE, "ids": IDS}, seed=0, device="cpu")


def _hold(name: str, path: Path) -> None:
    offer()
    loader = _loader(path)
    for _ in loader:  # memory and files are open now
        pass
    for _ in range(3):
        started = time.perf_counter()
        num = sum(1 for _ in loader)
        report_span(started, time.perf_counter(), batches=num)


def _grow(name: str, path: Path) -> None:
    import datapipe as dp  # noqa: F401

    loader, before = _loader(path), _resident_mb()
    most = 0.0
    for _ in range(2):
        for _ in loader:
            most = max(most, _resident_mb())
    print(json.dumps({"mb": most - before}))


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _run(kind: str, name: str, path: Path, scratch: str) -> dict[str, Any]:
    found: dict[str, Any] = harness.run_contender(f"{kind} {name}", _once(kind, name, path), environment=_environment(scratch))
    return found


def _once(kind: str, name: str, path: Path) -> list[str]:
    return ["benchmarks.tables", "--once", kind, name, str(path)]


def _environment(scratch: str) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": scratch, "HF_HOME": scratch}


def _has_duckdb() -> bool:
    if importlib.util.find_spec("duckdb") is None:
        print("duckdb is not installed: left out")
        return False
    return True


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description="Shuffled batches of a table's rows.")
    parser.add_argument("--rows", type=int, help=f"of the table (default: {32 * GROUP_ROWS}; {4 * GROUP_ROWS} with --dry-run)")
    parser.add_argument("--rounds", type=int, help="default: 7; 1 with --dry-run")
    parser.add_argument("--threads", type=int, default=2, help="for the record: threads are those of the machine")
    parser.add_argument("--scratch", type=Path, help="directory for the tables (1 GB); default: the system's")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    parser.add_argument("--dry-run", action="store_true", help="few rows, one round, nothing saved")
    parser.add_argument("--once", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.rows = arguments.rows or (4 if arguments.dry_run else 32) * GROUP_ROWS
    arguments.rounds = arguments.rounds or (1 if arguments.dry_run else 7)
    return arguments


if __name__ == "__main__":
    main()
