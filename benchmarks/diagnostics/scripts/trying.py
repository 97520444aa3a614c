"""Diagnose each script, carry out all that its diagnosis offers, and compare what came of it with what was predicted."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnostics.scripts.carrying_out import carry_out
from benchmarks.diagnostics.scripts.sources import TRAINING, Script
from benchmarks.environment import ROOT
from datapipe.analysis.predict.remedies import NOTHING
from datapipe.diagnostics.document import Document, Guided, read_document
from datapipe.diagnostics.report.screen import screen
from datapipe.testing.synthetic_images import make_image_folder

_LIMIT_S = 300  # of one run of one script
_TRIALS_S = 6
_NUM_PHOTOS = 400
_FINE = 0.05  # of the time: less waiting needs no remedy
_BATCH = "batch_size="
_HARM, _NEAR = 1.03, 1.10  # a recommended step is at most so many times the present one; the best at most so many the best tried


@dataclass(frozen=True, slots=True)
class Outcome:
    """A remedy, carried out; seconds per step, or of the run. `true_s` None: it failed."""

    name: str
    is_recommended: bool
    changes_results: bool
    predicted_s: float
    low_s: float
    high_s: float
    true_s: float | None
    now_s: float
    trouble: str = ""

    @property
    def is_within(self) -> bool:
        return self.true_s is not None and self.low_s <= self.true_s * 1.001 and self.true_s <= self.high_s * 1.001


@dataclass(frozen=True, slots=True)
class Tried:
    """One script: what its diagnosis said, what was true, and what came of its remedies."""

    script: str
    kind: str
    fault: str | None
    waiting: float | None  # as diagnosed
    step_s: float | None
    true_waiting: float  # by the script's own timer, undisturbed
    true_step_s: float
    best: str | None
    is_kind_right: bool
    is_fault_right: bool
    is_said: bool  # what the screen must say
    outcomes: tuple[Outcome, ...]

    @property
    def recommended(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.is_recommended and not one.changes_results]

    @property
    def num_harmful(self) -> int:
        return sum(one.true_s is None or one.true_s > _HARM * one.now_s for one in self.recommended)

    @property
    def is_best_near(self) -> bool | None:
        """Whether the best of the recommended steps is near the best of all; None if nothing was carried out."""
        known = [one for one in self.outcomes if one.true_s is not None and not one.changes_results and one.name != _SAVING]
        if not known:
            return None
        chosen = next((one.true_s for one in known if one.name == self.best), self.true_step_s)
        return chosen is not None and chosen <= _NEAR * min(self.true_step_s, *(one.true_s or 0.0 for one in known))

    @property
    def is_nothing_right(self) -> bool:
        """Whether "change nothing" is said only where the loop hardly waits."""
        return self.best != NOTHING or self.true_waiting < _FINE or self.is_best_near is not False


_SAVING = "persistent_workers=True"


def try_script(script: Script, scratch: Path) -> Tried:
    """Run the script alone, diagnosed, and with each remedy. `scratch`: an empty directory."""
    (scratch / "training.py").write_text(TRAINING)
    path = scratch / "train.py"
    path.write_text(script.source)
    if script.needs_photos:
        make_image_folder(scratch / "photos", num_images=_NUM_PHOTOS)
    alone = [_run(script, path)]
    document = _diagnose(script, path)
    alone.append(_run(script, path))  # before and after: a machine has its days
    now = {name: (alone[0][name] + alone[1][name]) / 2 for name in alone[0]}
    outcomes = [] if document.remedies is None else _outcomes(script, path, document, now)
    verdict, fault = document.verdict, document.attribution
    shown = " ".join(screen(document).split())
    return Tried(
        script=script.name,
        kind=verdict.kind.value,
        fault=None if fault is None else fault.fault,
        waiting=None if verdict.starvation is None else verdict.starvation.value,
        step_s=verdict.figures.step_s,
        true_waiting=now["waiting"],
        true_step_s=now["step_s"],
        best=None if document.remedies is None else document.remedies.best,
        is_kind_right=script.kind in ("", verdict.kind.value),
        is_fault_right=not script.faults or (fault is not None and fault.fault in script.faults),
        is_said=" ".join(script.says.split()) in shown,
        outcomes=tuple(outcomes),
    )


def _outcomes(script: Script, path: Path, document: Document, now: dict[str, float]) -> list[Outcome]:
    assert document.remedies is not None
    offered = [(one, True) for one in document.remedies.predictions] + [(one, False) for one in document.remedies.within_noise]
    found = []
    for one, is_recommended in offered:
        if one.code:
            truth, trouble = _carried_out(script, path, one)
            times = 2.0 if one.name.startswith(_BATCH) else 1.0  # predicted per batch of the present size
            true_s = None if truth is None else truth["step_s"] / times
            step = one.step_s
            is_other = bool(one.changes_results) or one.name.startswith(_BATCH)
            found.append(
                Outcome(one.name, is_recommended, is_other, step.value, step.low, step.high, true_s, now["step_s"], trouble)
            )
    for saving in () if document.run is None else document.run.savings:
        truth, trouble = _carried_out(script, path, saving)
        predicted_s = now["wall_s"] - saving.saved_s
        true_s = None if truth is None else truth["wall_s"]
        bounds = 0.9 * predicted_s, 1.1 * predicted_s
        found.append(Outcome(saving.name, True, False, predicted_s, *bounds, true_s, now["wall_s"], trouble))
    return found


def _carried_out(script: Script, path: Path, remedy: Guided) -> tuple[dict[str, float] | None, str]:
    """Return what the script's timer says with the remedy, or None and why."""
    changed = path.with_name("changed.py")
    changed.write_text(script.source)
    shutil.rmtree(path.with_name("DST"), ignore_errors=True)
    try:
        carry_out(remedy.instruction, changed)
        return _run(script, changed), ""
    except (ValueError, subprocess.SubprocessError, RuntimeError) as exc:
        return None, f"{type(exc).__name__}: {exc}"[-500:]


def _diagnose(script: Script, path: Path) -> Document:
    out = path.with_name("diagnosis")
    options = ["--out", str(out), "--no-html", "--trials", str(_TRIALS_S)]
    launched = _launcher(script, path)
    command = ["--", *launched] if script.num_ranks > 1 else [path.name]
    _execute([sys.executable, "-m", "datapipe", "diagnose", *options, *command], path)
    return read_document(json.loads((out / "diagnosis.json").read_text()))


def _run(script: Script, path: Path) -> dict[str, float]:
    """Run the script; the mean over its ranks."""
    _execute(_launcher(script, path), path)
    told = [json.loads(path.with_name(f"truth-{rank}.json").read_text()) for rank in range(script.num_ranks)]
    return {name: sum(one[name] for one in told) / len(told) for name in told[0]}


def _launcher(script: Script, path: Path) -> list[str]:
    if script.num_ranks == 1:
        return [sys.executable, path.name]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(script.num_ranks)]
    return [*launcher, "--master-addr", "localhost", "--master-port", str(port), path.name]


def _execute(command: list[str], path: Path) -> None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": str(ROOT),
        "TRUTH": str(path.with_name("truth")),
    }
    done = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")


def sum_up(tried: list[Tried]) -> dict[str, Any]:
    """Return the totals, and every miss by name."""
    outcomes = [(one.script, outcome) for one in tried for outcome in one.outcomes]
    recommended = [outcome for one in tried for outcome in one.recommended]
    near = [one.is_best_near for one in tried if one.is_best_near is not None]
    return {
        "num_scripts": len(tried),
        "num_kind_right": sum(one.is_kind_right for one in tried),
        "num_fault_right": sum(one.is_fault_right for one in tried),
        "num_said": sum(one.is_said for one in tried),
        "num_recommended": len(recommended),
        "num_harmful": sum(one.num_harmful for one in tried),
        "num_best_near": sum(near),
        "num_with_remedies": len(near),
        "num_nothing_right": sum(one.is_nothing_right for one in tried),
        "num_carried_out": sum(outcome.true_s is not None for _, outcome in outcomes),
        "num_failed": sum(outcome.true_s is None for _, outcome in outcomes),
        "num_within_interval": sum(outcome.is_within for _, outcome in outcomes),
        "misses": {
            "kind": [f"{one.script}: {one.kind}" for one in tried if not one.is_kind_right],
            "fault": [f"{one.script}: {one.fault}" for one in tried if not one.is_fault_right],
            "said": [one.script for one in tried if not one.is_said],
            "best": [f"{one.script}: {one.best}" for one in tried if one.is_best_near is False],
            "change nothing": [one.script for one in tried if not one.is_nothing_right],
            "harmful": [f"{one.script}: {bad.name}" for one in tried for bad in one.recommended if _is_harmful(bad)],
            "failed": [f"{script}: {outcome.name}: {outcome.trouble}" for script, outcome in outcomes if outcome.true_s is None],
        },
        "scripts": [asdict(one) for one in tried],
    }


def _is_harmful(one: Outcome) -> bool:
    return one.true_s is None or one.true_s > _HARM * one.now_s
