"""Converting loose files to shards, compared with `tar cf` and `sha256sum` of its output.

    python -m benchmarks.convert --gigabytes 5

Both read the same files from a warm page cache and write to the same file system, which is flushed
before each run. datapipe writes every byte to disk before it is done (fsync); tar does not, so a third
contender flushes its file too.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.data import DEFAULT_DATA, ImageSet, Workshop, prepare, warm
from benchmarks.environment import ROOT
from benchmarks.ratios import ratio_of, rotated

_DATAPIPE = "import sys; from datapipe.cli.main import main; sys.exit(main())"
_SAMPLE_EVERY_S = 0.02


def main() -> None:
    arguments = parse_arguments("benchmarks.convert")
    photos = prepare(Workshop(arguments.data), ImageSet("photos", num_files=arguments.files, copies=4), ("folder",)) / "folder"
    source = make_source(photos, arguments.data / f"convert-{arguments.gigabytes:g}GB", arguments.gigabytes)
    part = make_source(photos, arguments.data / f"convert-{arguments.gigabytes / 8:g}GB", arguments.gigabytes / 8)
    out = arguments.data / "convert-out"
    commands = {
        "ours": _ours(source, out, arguments.workers),
        "ours-again": _ours(source, out, arguments.workers),
        "tar": _tar(source, out, flush=False),
        "tar-flushed": _tar(source, out, flush=True),
    }
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for number in range(arguments.rounds):
        for name in rotated(list(commands), number):
            rounds[name].append(run_once(commands[name], source, out))
            print(f"round {number + 1}/{arguments.rounds}  {name:<12} {rounds[name][-1]['wall_s']:7.2f} s", flush=True)
    small = run_once(_ours(part, out, arguments.workers), part, out)
    shutil.rmtree(out)
    harness.save("convert", "benchmarks.convert", summarise(rounds, small, source, part, arguments), results=arguments.results)


def parse_arguments(module: str) -> argparse.Namespace:
    """The options of a benchmark of conversions."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--gigabytes", type=float, default=5.0, help="of source files")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--files", type=int, default=3000, help="different images that the source is copied from")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    return parser.parse_args()


def convert_command(source: Path, out: Path, *arguments: str) -> list[str]:
    """`datapipe convert` of a source into tars."""
    return [sys.executable, "-c", _DATAPIPE, "convert", str(source), str(out), "--to", "webdataset", *arguments]


def make_source(photos: Path, target: Path, gigabytes: float) -> Path:
    """Copies of the photographs, each its own file, until they make up that much."""
    if target.exists():
        return target
    print(f"making {target} ...", flush=True)
    unfinished = target.with_name(f"unfinished-{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    files = [path for path in sorted(photos.glob("*/*")) if path.stem.endswith("-0")]
    left, copy = int(gigabytes * 1e9), 0
    while left > 0:
        for path in files:
            if left <= 0:
                break
            to = unfinished / path.parent.name / f"{path.stem}{copy:04d}{path.suffix}"
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            left -= path.stat().st_size
        copy += 1
    os.replace(unfinished, target)
    return target


def _ours(source: Path, out: Path, workers: int) -> list[str]:
    return convert_command(source, out / "shards", "--check", "header", "--workers", str(workers))


def _tar(source: Path, out: Path, *, flush: bool) -> list[str]:
    tar, from_here = shlex.quote(str(out / "all.tar")), shlex.quote(str(source))
    script = f"tar cf {tar} -C {from_here} . && sha256sum {tar} > {tar}.sha256"
    return ["sh", "-c", script + (f" && sync {tar}" if flush else "")]


def run_once(command: list[str], source: Path | None, out: Path, *, empties: bool = True) -> dict[str, float]:
    """Wall seconds of the command, CPU seconds of it and its children, and their peak of anonymous memory.

    `source` is read beforehand; None leaves the page cache as it is. `empties`: make `out` an empty directory first.
    """
    if empties:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
    if source is not None:
        warm([source])
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = _PeakMemory(process.pid)
    _, errors = process.communicate()
    wall_s = time.perf_counter() - started
    if process.returncode != 0:
        raise SystemExit(f"{shlex.join(command)} failed:\n{errors[-3000:]}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_anonymous_mb": peak.stop()}


class _PeakMemory:
    """Watches the anonymous resident memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak, self._ended = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> float:
        self._ended.set()
        self._thread.join()
        return self._peak / 1e6

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_EVERY_S):
            self._peak = max(self._peak, sum(_anonymous_nbytes(pid) for pid in _family(self._pid)))


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in _family(int(child)))]


def _anonymous_nbytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:")), 0)


def summarise(
    rounds: dict[str, list[dict[str, float]]], small: dict[str, float], source: Path, part: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Medians, ratios to ours, and how memory grows with the number of files."""
    times = {name: [one["wall_s"] for one in of_one] for name, of_one in rounds.items()}
    sizes = [path.stat().st_size for path in source.glob("*/*")]
    contenders = {
        name: {
            "median_s": round(statistics.median(values), 2),
            "rounds_s": [round(value, 2) for value in values],
            "peak_anonymous_mb": round(max(one["peak_anonymous_mb"] for one in rounds[name]), 1),
        }
        for name, values in times.items()
    }
    return {
        "dataset": {"num_files": len(sizes), "nbytes": sum(sizes)},
        "settings": {"workers": arguments.workers, "num_rounds": arguments.rounds, "check": "header", "encode": "keep"},
        "contenders": contenders,
        "ratios": {
            f"ours / {name}": dataclasses.asdict(ratio_of(times["ours"], times[name])) for name in times if name != "ours"
        },
        "memory": [
            {"num_files": sum(1 for _ in part.glob("*/*")), "peak_anonymous_mb": round(small["peak_anonymous_mb"], 1)},
            {"num_files": len(sizes), "peak_anonymous_mb": contenders["ours"]["peak_anonymous_mb"]},
        ],
    }


if __name__ == "__main__":
    main()
