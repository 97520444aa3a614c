"""Run the tests that decide on pixels, decoding and parity under every kind of CPU that this machine can stand for.

    python -m tests.run_cpu_kinds          # or `make cpu-kinds`: about two minutes on two cores

It ends with one line per kind. The exit status is 1 if a test failed in one of them. benchmarks/cpu_kinds.py lists the kinds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.cpu_kinds import CpuKind, cpu_kinds

ROOT = Path(__file__).parents[1]
TESTS = [
    "tests/transforms/test_same_on_every_cpu.py",
    "tests/transforms/test_execute.py",
    "tests/transforms/test_lowering.py",
    "tests/transforms/test_mix.py",
    "tests/transforms/test_parity.py",
    "tests/transforms/test_parity_backends.py",
    "tests/transforms/test_pixel_ops.py",
    "tests/backends/test_images_cpu.py",
    "tests/codecs/test_probe_decode.py",
    "tests/converters/test_resize_parity.py",
]
LEFT_OUT = "not damaged and not memory_behind"  # slow ones, about errors and leaks


def main() -> None:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        outcomes = list(pool.map(run, cpu_kinds()))
    print(*outcomes, sep="\n")
    if any("FAILED" in outcome for outcome in outcomes):
        raise SystemExit(1)


def run(kind: CpuKind) -> str:
    """Run the tests in that kind, print what pytest says if one fails, and return a line with the counts."""
    settings = " ".join(f"{name}={value!r}" for name, value in kind.settings.items())
    line = f"{kind.name:14}{{}}" + f"  ({settings})" * bool(settings)
    if reason := kind.why_not():
        return line.format(f"skipped: {reason}")
    with tempfile.TemporaryDirectory() as scratch:
        counts = Path(scratch) / "counts.xml"
        options = ["-p", "no:cacheprovider", "-k", LEFT_OUT, f"--basetemp={scratch}/pytest", f"--junitxml={counts}"]
        command = [sys.executable, "-m", "pytest", *options, *TESTS]
        done = subprocess.run(command, cwd=ROOT, env=kind.environment(), capture_output=True, text=True)
        if done.returncode:
            print(f"== {kind.name}\n{done.stdout}{done.stderr}", flush=True)
        if not counts.exists():
            return line.format(f"FAILED: pytest ended with status {done.returncode} before it ran a test")
        suite = ElementTree.parse(counts).getroot()[0]
        num = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = num["failures"] + num["errors"]
    passed = num["tests"] - failed - num["skipped"]
    outcome = "FAILED" if done.returncode else "passed"
    return line.format(f"{outcome}: {passed} passed, {failed} failed, {num['skipped']} skipped")


if __name__ == "__main__":
    main()
