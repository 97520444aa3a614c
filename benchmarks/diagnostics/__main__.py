"""Is the diagnosis right? Starvation against a device's own log, verdicts, the stage that is blamed against the one with
the planted fault, and predictions against what came of them.

    python -m benchmarks.diagnostics virtual         # the whole matrix in virtual time: five minutes
    python -m benchmarks.diagnostics real            # nearly fifty cells and the controls in real time: eight minutes

Every cell is run and measured; from that, what each remedy would bring is predicted and written to a file. Only then
are the remedies applied, to loaders whose jitter is drawn anew. A run in virtual time is exact and the same on any
machine; in real time torch's DataLoader runs with real workers, and what else the machine does is in the result:
it should be idle.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.diagnostics.cells import Cell, matrix
from benchmarks.diagnostics.outcomes import Finding, apply_all, as_rows, find, sum_up
from benchmarks.diagnostics.plots import plot
from benchmarks.diagnostics.real_runs import CONTROLS, NUM_BATCHES, real_cells, run_control, run_real
from benchmarks.diagnostics.remedies import apply
from benchmarks.diagnostics.runs import Run, run_ranks
from datapipe.analysis.judge.verdict import MODERATE, figures_of, judge
from datapipe.analysis.predict.remedies import Remedy
from datapipe.analysis.predict.replay import Delivery


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnostics")
    parser.add_argument("time", choices=("virtual", "real"))
    parser.add_argument("--every", type=int, default=1, help="take every so many-th cell")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    started = time.perf_counter()
    is_real = arguments.time == "real"
    name = f"diagnostics-{arguments.time}"
    if is_real:
        findings = [_told(find(cell, [run_real(cell)])) for cell in real_cells()[:: arguments.every]]
    else:
        findings = [_told(find(cell, run_ranks(cell))) for cell in matrix()[:: arguments.every]]
    predictions = freeze(findings, arguments.results / f"{name}-predictions.jsonl")

    # In real time those that are well would take minutes to stay as they are.
    applied_to = [f for f in findings if f.forecast and (f.tail >= MODERATE or not is_real)]
    applied = [one for f in applied_to for one in apply_all(f, apply_really if is_real else apply_virtually)]
    result: dict[str, Any] = {
        "settings": {"every": arguments.every, "versions": _versions()},
        "predictions_file": predictions,
        **sum_up(findings, applied),
        **({"controls": [_control(control) for control in CONTROLS], "applied": as_rows(applied)} if is_real else {}),
        "minutes": round((time.perf_counter() - started) / 60, 1),
    }
    harness.save(name, "benchmarks.diagnostics", result, results=arguments.results)
    plot(findings, applied, arguments.results / f"{name}.png", title=f"{arguments.time} time")
    print(
        f"measured right {result['num_measured_right']} of {result['num_cells']}, "
        f"judged right {result['num_judged_right']}, false without a stall {result['num_false_without_stall']}; "
        f"stage right {result['num_stage_right']} of {result['num_staged']}; "
        f"top remedy {result['num_top_right']} of {result['num_ranked']}"
    )
    for title in ("predictions", "of_starved"):
        of = result[title]
        print(f"  {title}: {of['num']}, error {of['median_error']:.1%} median, {of['p90_error']:.1%} p90")


def apply_virtually(remedy: Remedy, cell: Cell) -> Run:
    """The remedy in the virtual loader, with other jitter of the same kind."""
    return apply(remedy, cell, seed=1)


def freeze(findings: Sequence[Finding], path: Path) -> dict[str, str]:
    """Write what is predicted, before anything is applied; the file and its hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for finding in findings:
        if finding.forecast:
            ranking = finding.forecast.ranking
            ms = {
                one.remedy.name: [round(value * 1e3, 3) for value in (one.step_s.low, one.step_s.value, one.step_s.high)]
                for one in (ranking.now, *ranking.predictions)
            }
            lines.append(json.dumps({"cell": finding.cell.name, "best": finding.forecast.best, "step_ms": ms}))
    text = "\n".join(lines) + "\n"
    path.write_text(text)
    return {"file": path.name, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def apply_really(remedy: Remedy, cell: Cell) -> Run:
    """The remedy in torch's DataLoader."""
    setup = remedy.change.setup or cell.setup
    return run_real(
        cell,
        num_workers=setup.num_workers,
        prefetch=setup.depth // setup.num_workers if setup.num_workers else 1,
        factor=remedy.change.production_factor,
        drops_syncs=remedy.change.drops_syncs,
        in_order=setup.delivery is not Delivery.COMPLETION,
        seed=1,
        num_batches=2 * NUM_BATCHES,  # its second half, which counts, is as long as the run that the prediction was made from
    )


def _told(finding: Finding) -> Finding:
    print(f"{finding.cell.name:<40} {finding.verdict.kind.value:<16} {finding.tail:7.1%}", flush=True)
    return finding


def _control(name: str) -> dict[str, Any]:
    run = run_control(name)
    verdict = judge(figures_of(run.steps, num_workers=0), run.context)
    share = verdict.figures.starvation
    return {
        "name": name,
        "verdict": verdict.kind.value,
        "starvation": None if share is None else round(share.value, 3),
        "second_half": round(run.tail_starvation(), 3),
        "num_nested": run.context.num_nested,
        "num_elsewhere": run.context.num_elsewhere,
    }


def _versions() -> dict[str, str]:
    import numpy as np
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}


if __name__ == "__main__":
    main()
