"""The same scripts under `datapipe diagnose` and under TraceML: what each says, whether it is so, and what measuring costs.

    python -m venv /tmp/traceml && /tmp/traceml/bin/pip install traceml-ai==0.5.0 torch==2.13.0 pillow
    python -m benchmarks.diagnostics.peers --traceml /tmp/traceml/bin/python      # about 15 minutes on 2 cores

TraceML asks for two lines in a loop of one's own, `traceml.init()` and `with traceml.trace_step(model)`: they are in the scripts,
whose timer of their own is the truth. `datapipe diagnose` tries no remedies here. TraceML does not look into the loader, so that
only its verdict can be compared, and its share of waiting. Of several ranks, one of which is late, the rank is compared, and
whether its data is blamed, or its computing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.diagnostics.late_ranks import FAULTS, diagnosed, execute, torchrun
from benchmarks.diagnostics.late_ranks import TRAINING as LATE
from benchmarks.diagnostics.scripts.sources import SCRIPTS, TRAINING, Script
from datapipe.diagnostics.report import words
from datapipe.testing.synthetic_images import make_image_folder

_STARVED = 0.05  # of the time
_NUM_RANKS, _LATE_RANK = 3, 2
_STEPS, _STEP_S, _ROUNDS = 400, 0.02, 3  # of the loop whose cost is measured

_IMPORTED = """import torch

try:
    import traceml_ai as traceml

    traceml.init(mode="auto")
    trace_step = traceml.trace_step
except ImportError:
    import contextlib

    def trace_step(model):
        return contextlib.nullcontext()
"""
_MODEL = """

class Weight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, work_s):
        time.sleep(work_s)
        return self.weight * 1.0
"""
_COST = f"""
import json, os, sys, time
{_IMPORTED}
from torch.utils.data import DataLoader
{_MODEL}

def compute(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


model, loader = Weight(), DataLoader(torch.randn({_STEPS} * 8, 64), batch_size=8)
if sys.argv[1] == "monitor":
    import datapipe

    loader = datapipe.Monitor(loader, quiet=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
times = []
for batch in loader:
    times.append((time.perf_counter(), time.process_time()))
    with trace_step(model):
        loss = model(0.0).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        compute({_STEP_S})
wall_s, cpu_s = (last - first for first, last in zip(times[{_STEPS // 4}], times[-1]))
num = len(times) - {_STEPS // 4} - 1
with open(os.environ["TRUTH"], "w") as file:
    json.dump({{"wall_s": wall_s / num, "cpu_s": cpu_s / num}}, file)
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnostics.peers")
    parser.add_argument("--traceml", type=Path, required=True, help="the Python of an environment with traceml-ai and torch")
    parser.add_argument("--only", help="names of scripts, separated by commas")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    started_s, python = time.perf_counter(), str(arguments.traceml.absolute())
    names = None if arguments.only is None else arguments.only.split(",")
    scripts = [_told(both(script, python)) for script in SCRIPTS if names is None or script.name in names]
    ranks = [_told(both_on_ranks(fault, python)) for fault in ("none", *FAULTS)] if names is None else []
    result = {
        "traceml": _version(python),
        "scripts": scripts,
        "ranks": ranks,
        "cost": cost(python) if names is None else {},
        "totals": sum_up(scripts, ranks),
        "minutes": round((time.perf_counter() - started_s) / 60, 1),
    }
    print(json.dumps({"totals": result["totals"], "cost": result["cost"]}, indent=1))
    harness.save("diagnostics-peers", "benchmarks.diagnostics.peers", result, results=arguments.results)


def traced(training: str) -> str:
    """Return the scripts' loop with the lines that TraceML asks for, and with a model whose forward pass is its work."""
    changes = (
        ("import torch\n", f"{_IMPORTED}{_MODEL}"),
        ("    weight = torch.zeros(1, requires_grad=True)\n", "    model = Weight()\n    weight = model.weight\n"),
        (
            "            time.sleep(work_s * len(samples) / batch_size)\n"
            "            (weight * 1.0).sum().backward()\n"
            "            optimizer.step()\n",
            "            with trace_step(model):\n"
            "                model(work_s * len(samples) / batch_size).sum().backward()\n"
            "                optimizer.step()\n",
        ),
    )
    return _changed(training, changes)


def traced_ranks(training: str) -> str:
    """Return the loop of late ranks with the lines that TraceML asks for."""
    changes = (
        ("import torch\n", _IMPORTED),
        (
            "    model(inputs).square().mean().backward()\n    optimizer.step()\n    optimizer.zero_grad()\n",
            "    with trace_step(model):\n"
            "        model(inputs).square().mean().backward()\n        optimizer.step()\n        optimizer.zero_grad()\n",
        ),
    )
    return _changed(training, changes)


def _changed(text: str, changes: tuple[tuple[str, str], ...]) -> str:
    for old, new in changes:
        if text.count(old) != 1:
            raise SystemExit(f"{old!r}: is {text.count(old)} times in the loop, which must have it once")
        text = text.replace(old, new)
    return text


def both(script: Script, python: str) -> dict[str, Any]:
    """Run one of the scripts under both; what each says, beside what its timer says meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "training.py").write_text(traced(TRAINING))
        (scratch / "train.py").write_text(script.source)
        if script.needs_photos:
            make_image_folder(scratch / "photos", num_images=400)
        launcher = torchrun(script.num_ranks) if script.num_ranks > 1 else None
        ours, our_truth = diagnosed(scratch, [], launcher=launcher), _truth(scratch, script.num_ranks)
        theirs, their_truth = under_traceml(scratch, script.num_ranks, [], python), _truth(scratch, script.num_ranks)
    share, fault, found = ours.verdict.starvation, ours.attribution, theirs["primary_diagnosis"]
    means = theirs["step_time"]["global"] or {}
    step_ms = (means.get("average") or {}).get("step_time_ms")
    wait_ms = ((means.get("worst") or {}).get("input_wait_ms") or {}).get("value")  # of the rank that waits most
    return {
        "script": script.name,
        "expected": script.kind or None,
        "faults": script.faults,
        "datapipe": {
            "says": ours.verdict.kind.value,
            "is_starved": words.is_starved(ours.verdict),
            "waiting": None if share is None else round(share.value, 4),
            "stage": None if fault is None else fault.fault,
            "truly": round(our_truth, 4),
        },
        "traceml": {
            "says": found["kind"],
            "is_starved": found["kind"] in ("INPUT_BOUND", "INPUT_STRAGGLER"),
            "waiting": round(wait_ms / step_ms, 4) if wait_ms is not None and step_ms else None,
            "truly": round(their_truth, 4),
        },
    }


def both_on_ranks(fault: str, python: str) -> dict[str, Any]:
    """Run the script of late ranks under both: whom and what each blames."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "train.py").write_text(traced_ranks(LATE))
        script_arguments = [fault, str(_LATE_RANK), "none"]
        ours = diagnosed(scratch, script_arguments, launcher=torchrun(_NUM_RANKS))
        theirs = under_traceml(scratch, _NUM_RANKS, script_arguments, python)
    late, found = ours.straggler, theirs["step_time"]["diagnosis"]
    is_late = str(found["kind"]).endswith("STRAGGLER")
    return {
        "fault": fault,
        "rank": None if fault == "none" else _LATE_RANK,
        "datapipe": {"rank": late and late.rank, "part": late and (late.stage or late.part)},
        "traceml": {"rank": (found["ranks"] or [None])[0] if is_late else None, "part": found["kind"] if is_late else None},
    }


def under_traceml(scratch: Path, num_ranks: int, script_arguments: list[str], python: str) -> dict[str, Any]:
    """Return the summary of a run."""
    command = [python, "-c", "from traceml_ai.launcher.cli import main; main()", "run", "train.py"]
    ranks = [] if num_ranks == 1 else ["--nproc-per-node", str(num_ranks)]
    further = ["--args", *script_arguments] if script_arguments else []
    execute([*command, *ranks, *further], scratch)
    (summary,) = scratch.glob("logs/*/final_summary.json")
    return _read(summary)


def cost(python: str) -> dict[str, Any]:
    """Measure a loop that computes for `_STEP_S` a step, alone and under each, in turns: medians of seconds a step."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "train.py").write_text(_COST)
        contenders: dict[str, Callable[[], object]] = {
            "alone": lambda: execute([sys.executable, "train.py", "alone"], scratch),
            "datapipe diagnose": lambda: _diagnosed(scratch),
            "datapipe.Monitor": lambda: execute([sys.executable, "train.py", "monitor"], scratch),
            "traceml": lambda: _traced(scratch, python),
        }
        rounds: dict[str, list[dict[str, float]]] = {contender: [] for contender in contenders}
        for _ in range(_ROUNDS):
            for contender, run in contenders.items():
                run()
                rounds[contender].append(_read(scratch / "truth"))
    found = {
        contender: {f"{what[:-2]}_us": round(1e6 * statistics.median(one[what] for one in of), 1) for what in ("wall_s", "cpu_s")}
        for contender, of in rounds.items()
    }
    alone = found["alone"]
    return {contender: of | {"more_cpu_us": round(of["cpu_us"] - alone["cpu_us"], 1)} for contender, of in found.items()}


def _diagnosed(scratch: Path) -> None:
    shutil.rmtree(scratch / "diagnosis", ignore_errors=True)
    diagnosed(scratch, ["diagnose"])


def _traced(scratch: Path, python: str) -> None:
    execute([python, "-c", "from traceml_ai.launcher.cli import main; main()", "run", "train.py", "--args", "traceml"], scratch)


def _truth(scratch: Path, num_ranks: int) -> float:
    """Return the largest share of waiting of the ranks, by the script's own timer."""
    return max(float(_read(scratch / f"truth-{rank}.json")["waiting"]) for rank in range(num_ranks))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _version(python: str) -> str:
    code = "import importlib.metadata; print(importlib.metadata.version('traceml-ai'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _told(row: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(row), flush=True)
    return row


def sum_up(scripts: list[dict[str, Any]], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of each tool: verdicts that say whether data starves the loop, errors of its share, late ranks."""
    totals: dict[str, Any] = {"num_scripts": len(scripts), "num_ranks": len(ranks)}
    for tool in ("datapipe", "traceml"):
        told = [one[tool] for one in scripts]
        errors = [abs(one["waiting"] - one["truly"]) for one in told if one["waiting"] is not None]
        totals[tool] = {
            "num_verdicts_right": sum(one["is_starved"] == (one["truly"] >= _STARVED) for one in told),
            "median_error_of_waiting": round(statistics.median(errors), 4) if errors else None,
            "worst_error_of_waiting": round(max(errors), 4) if errors else None,
            "num_late_ranks_right": sum(one[tool]["rank"] == one["rank"] for one in ranks),
            "num_parts_right": sum(_is_part_right(one["fault"], one[tool]["part"]) for one in ranks),
        }
    totals["datapipe"]["num_stages_right"] = sum(
        not one["faults"] or one["datapipe"]["stage"] in one["faults"] for one in scripts
    )
    return totals


def _is_part_right(fault: str, part: str | None) -> bool:
    """Whether the blamed part is the planted one: the stage itself, or whatever TraceML may call what it belongs to."""
    if fault == "none":
        return part is None
    theirs = {"forward": ("COMPUTE_STRAGGLER",), "backward": ("COMPUTE_STRAGGLER", "STRAGGLER"), "loop": ("STRAGGLER",)}
    return part in (fault, *(("dataset",) if fault == "decode" else ()), *theirs.get(fault, ("INPUT_STRAGGLER",)))


if __name__ == "__main__":
    main()
