"""Run the tests that decide on pixels, decoding and parity under every kind of CPU that this machine can stand for.

    python -m tests.run_cpu_kinds            # or `make cpu-kinds`: about two minutes on two cores
    python -m tests.run_cpu_kinds --record   # also writes benchmarks/results/cpu-kinds.json, for docs/stability.md

It ends with one line per kind. The exit status is 1 if a test failed in one of them. benchmarks/cpu_kinds.py lists the kinds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.cpu_kinds import CpuKind, cpu_kinds
from benchmarks.environment import ROOT, describe_environment

RESULT = ROOT / "benchmarks" / "results" / "cpu-kinds.json"
TESTS = [
    "tests/transforms/test_same_on_every_cpu.py",
    "tests/transforms/test_execute.py",
    "tests/transforms/test_lowering.py",
    "tests/transforms/test_mix.py",
    "tests/transforms/test_parity.py",
    "tests/transforms/test_parity_backends.py",
    "tests/transforms/test_pixel_ops.py",
    "tests/kinds/images/test_images_cpu.py",
    "tests/codecs/test_probe_decode.py",
    "tests/converters/test_resize_parity.py",
]
LEFT_OUT = "not damaged and not memory_behind"  # slow ones, about errors and leaks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.run_cpu_kinds")
    parser.add_argument("--record", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    is_recording = parser.parse_args().record
    environment = describe_environment() if is_recording else {}  # of the machine before it is busy
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        runs = list(pool.map(run, cpu_kinds()))
    for outcome in runs:
        settings = " ".join(f"{name}={value!r}" for name, value in outcome["settings"].items())
        print(f"{outcome['name']:14}{as_text(outcome)}" + f"  ({settings})" * bool(settings))
    if is_recording:
        RESULT.write_text(json.dumps({"tests": TESTS, "runs": runs, "environment": environment}, indent=1) + "\n")
    if any(outcome.get("failed") for outcome in runs):
        raise SystemExit(1)


def run(kind: CpuKind) -> dict[str, Any]:
    """Run the tests in that kind and count what became of them; print what pytest says if one fails."""
    outcome = {"name": kind.name, "settings": kind.settings}
    if reason := kind.why_not():
        return outcome | {"not_run": reason}
    with tempfile.TemporaryDirectory() as scratch:
        counts = Path(scratch) / "counts.xml"
        options = ["-p", "no:cacheprovider", "-k", LEFT_OUT, f"--basetemp={scratch}/pytest", f"--junitxml={counts}"]
        command = [sys.executable, "-m", "pytest", *options, *TESTS]
        done = subprocess.run(command, cwd=ROOT, env=kind.environment(), capture_output=True, text=True)
        if done.returncode:
            print(f"== {kind.name}\n{done.stdout}{done.stderr}", flush=True)
        if not counts.exists():
            return outcome | {"passed": 0, "failed": 1, "skipped": 0}  # pytest ended before it ran a test, as was printed
        suite = ElementTree.parse(counts).getroot()[0]
    num = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = num["failures"] + num["errors"]
    passed = num["tests"] - failed - num["skipped"]
    return outcome | {"passed": passed, "failed": failed or int(done.returncode != 0), "skipped": num["skipped"]}


def as_text(outcome: dict[str, Any]) -> str:
    if "not_run" in outcome:
        return f"not run: {outcome['not_run']}"
    return f"{outcome['passed']} passed, {outcome['failed']} failed, {outcome['skipped']} skipped"


if __name__ == "__main__":
    main()
