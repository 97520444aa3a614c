"""A script of known delays, alone or under `datapipe diagnose`."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.gpu.delayed_train import MARK, main
from benchmarks.gpu.settings import Check

_FIGURES = ("basis", "data_s", "step_s", "host_wait_s", "gap_s", "is_settled", "num_steps")


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: options (of the script), is_diagnosed."""
    module = ["-m", "benchmarks.gpu.delayed_train", "--device", check.device, *arguments["options"]]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "out")
        diagnose = ["-m", "datapipe", "diagnose", "--out", str(out), "--no-html", "--trials", "0"]
        if arguments["is_diagnosed"] or not check.is_dry:
            said = _run([sys.executable, *(diagnose if arguments["is_diagnosed"] else []), *module])
        else:
            said = _run_here(module)
        (line,) = (line for line in said.splitlines() if line.startswith(MARK))
        found: dict[str, Any] = json.loads(line.removeprefix(MARK))
        if arguments["is_diagnosed"]:
            verdict = json.loads((out / "diagnosis.json").read_text())["verdict"]
            figures = verdict["figures"]
            found |= {"kind": verdict["kind"], **{name: figures[name] for name in _FIGURES}}
            found["starvation"] = figures["starvation"]
    yield found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def _run_here(module: list[str]) -> str:
    """Run the script in this job's process, which has imported torch already: for dry runs, whose times say nothing."""
    sys.argv = module[1:]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        main()
    return said.getvalue()
