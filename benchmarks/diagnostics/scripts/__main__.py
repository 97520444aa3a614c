"""Diagnose whole scripts, each with a known fault, and carry out every remedy as its code is printed.

    python -m benchmarks.diagnostics.scripts                       # all: about 20 minutes on an idle machine of 2 cores
    python -m benchmarks.diagnostics.scripts --only lock,zipped    # some of them

Each script has a plain timer of its own, which is the truth. It runs alone, diagnosed by the command, alone again, and with
each remedy: the arguments changed and the statements added where the diagnosis says, by a program that knows no more than
what is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import harness
from benchmarks.diagnostics.scripts.sources import SCRIPTS
from benchmarks.diagnostics.scripts.trying import Tried, sum_up, try_script


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnostics.scripts")
    parser.add_argument("--only", help=f"names, separated by commas: {', '.join(one.name for one in SCRIPTS)}")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    names = [one.name for one in SCRIPTS] if arguments.only is None else arguments.only.split(",")
    if unknown := set(names) - {one.name for one in SCRIPTS}:
        parser.error(f"--only {', '.join(sorted(unknown))}: no such script")
    started_s, tried, crashed = time.perf_counter(), list[Tried](), list[str]()
    for script in SCRIPTS:
        if script.name not in names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                one = try_script(script, Path(scratch))
            except (RuntimeError, subprocess.SubprocessError) as exc:  # the other scripts take too long to be lost
                crashed.append(f"{script.name}: {exc}")
                print(f"{crashed[-1]}   CRASHED", flush=True)
                continue
        tried.append(one)
        steps = f"{(one.step_s or 0) * 1e3:.1f} ms ({one.true_step_s * 1e3:.1f})"
        wrong = "" if one.is_kind_right and one.is_fault_right and one.is_said else "   WRONG"
        print(
            f"{one.script}: {one.kind}, {one.waiting or 0:.0%} (truly {one.true_waiting:.0%}) of {steps}, at fault {one.fault}, "
            f"best {one.best}{wrong}",
            flush=True,
        )
        for outcome in one.outcomes:
            true = "failed: " + outcome.trouble if outcome.true_s is None else f"{outcome.true_s * 1e3:.1f}"
            bounds = f"[{outcome.low_s * 1e3:.1f}, {outcome.high_s * 1e3:.1f}]"
            mark = "*" if outcome.is_recommended else " "
            print(f"   {mark} {outcome.name}: predicted {outcome.predicted_s * 1e3:.1f} {bounds} ms, came to {true}", flush=True)
    result = sum_up(tried) | {"crashed": crashed, "minutes": round((time.perf_counter() - started_s) / 60, 1)}
    print(json.dumps({name: value for name, value in result.items() if name != "scripts"}, indent=1))
    harness.save("diagnostics-scripts", "benchmarks.diagnostics.scripts", result, results=arguments.results)


if __name__ == "__main__":
    main()
