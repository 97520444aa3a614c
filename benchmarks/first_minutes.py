"""How long the demo and the tests of the day take, once what they need is installed: medians of three runs.

python -m benchmarks.first_minutes     # about a quarter of an hour on two cores; close other programs
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from typing import Any

from benchmarks.environment import ROOT, command_of, describe_environment
from benchmarks.harness import RESULTS
from benchmarks.versions import counted

_RUNS = 3


def main() -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.first_minutes").parse_args()
    found: dict[str, Any] = {"command": command_of("benchmarks.first_minutes"), "environment": describe_environment()}
    subprocess.run(["make", "setup"], cwd=ROOT, check=True)
    for target in ("demo", "test"):
        runs = [_timed(target) for _ in range(_RUNS)]
        found[target] = {"seconds": round(statistics.median(run["seconds"] for run in runs), 1), "runs": runs}
    (RESULTS / "first-minutes.json").write_text(json.dumps(found, indent=1) + "\n")


def _timed(target: str) -> dict[str, Any]:
    """Make a target with an empty home and an empty temporary directory; raises CalledProcessError if it fails."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as temporary:
        environment = {**os.environ, "HOME": home, "TMPDIR": temporary, "DEMO_ARGS": f"--out {temporary}/demo-out"}
        begun = time.monotonic()
        made = subprocess.run(["make", target], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        seconds = round(time.monotonic() - begun, 1)
    outcomes = {} if target == "demo" else counted(made.stdout)
    print(f"make {target}: {seconds} s {outcomes or ''}", flush=True)
    return {"seconds": seconds, **outcomes}


if __name__ == "__main__":
    main()
