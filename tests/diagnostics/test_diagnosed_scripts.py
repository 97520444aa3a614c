"""The proof by whole scripts: its sources, its way to carry out what is printed, and its totals."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.diagnostics.scripts.carrying_out import carry_out
from benchmarks.diagnostics.scripts.sources import SCRIPTS, TRAINING
from benchmarks.diagnostics.scripts.trying import Outcome, Tried, sum_up
from datapipe.analysis.predict.instructions import Instruction, Snippet, python_call

SOURCE = """import torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    loader = DataLoader(data, batch_size=8, num_workers=1)
    train(lambda: loader)
"""


def python(text: str, line: int = 5) -> Instruction:
    return Instruction((Snippet("python", text),), f"train.py:{line}")


def carried_out(how: Instruction, tmp_path: Path) -> str:
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    carry_out(how, script)
    return script.read_text()


def test_scripts_are_python_and_unlike() -> None:
    ast.parse(TRAINING)
    assert len({one.name for one in SCRIPTS}) == len(SCRIPTS)
    for script in SCRIPTS:
        ast.parse(script.source)
        assert "loader = " in script.main
    wanted = {
        "lock",
        "bandwidth",
        "rare stalls",
        "own Dataset",
        "two levels",
        "start-up",
        "zipped",
        "validation",
        "large batches",
    }
    assert {one.name for one in SCRIPTS} >= wanted | {"slow rank", "slow sampler", "heavy collate", "feeder"}


def test_an_argument_is_changed_or_added(tmp_path: Path) -> None:
    assert "DataLoader(data, batch_size=8, num_workers=4)" in carried_out(python("num_workers=4"), tmp_path)
    assert "num_workers=1, in_order=False)" in carried_out(python("in_order=False"), tmp_path)
    with pytest.raises(ValueError, match="line 6 makes no loader"):
        carried_out(python("num_workers=4", line=6), tmp_path)
    with pytest.raises(ValueError, match="does not say where"):
        carried_out(replace(python("num_workers=4"), where=None), tmp_path)


def test_a_statement_goes_below_the_loader(tmp_path: Path) -> None:
    code = python_call("loader = datapipe.from_torch", "loader", 'device="cpu"')
    changed = carried_out(Instruction((code,), "train.py:5"), tmp_path).splitlines()
    assert changed[0] == "import datapipe"
    assert changed[6] == '    loader = datapipe.from_torch(loader, device="cpu")'
    assert changed[7] == "    train(lambda: loader)"


def outcome(name: str, true_ms: float | None, *, is_recommended: bool = True, predicted_ms: float = 20) -> Outcome:
    bounds = predicted_ms * 0.9e-3, predicted_ms * 1.1e-3
    true_s = None if true_ms is None else true_ms * 1e-3
    return Outcome(name, is_recommended, False, predicted_ms * 1e-3, *bounds, true_s, 30e-3)


def tried(best: str, *outcomes: Outcome) -> Tried:
    return Tried("lock", "data-bound", "read", 0.6, 0.03, 0.6, 0.03, best, True, True, True, outcomes)


def test_totals_tell_harm_and_what_was_missed() -> None:
    good = tried("more", outcome("more", 21), outcome("other", 24, is_recommended=False))
    found = sum_up([good])
    assert (found["num_harmful"], found["num_best_near"], found["num_within_interval"], found["num_recommended"]) == (0, 1, 1, 1)
    harmful = sum_up([tried("more", outcome("more", 34), outcome("other", 21, is_recommended=False))])
    assert (harmful["num_harmful"], harmful["num_best_near"]) == (1, 0)
    assert harmful["misses"]["harmful"] == ["lock: more"]
    idle = sum_up([tried("change nothing", outcome("more", 21, is_recommended=False))])
    assert (idle["num_nothing_right"], idle["num_best_near"]) == (0, 0)
    failed = sum_up([tried("more", outcome("more", None))])
    assert (failed["num_failed"], failed["num_harmful"]) == (1, 1)
