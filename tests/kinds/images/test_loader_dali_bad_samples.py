"""No sample takes DALI's process down, whatever it is and wherever it stands; and it harms no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bad_batches import BATCH, DOUBTFUL, PLACES, SCENARIOS, Scenario

pytest.importorskip("nvidia.dali", reason="DALI is not installed")


@pytest.mark.nightly
def test_the_policy_is_applied_and_every_other_sample_is_right(tmp_path: Path) -> None:
    """All scenarios in one process: a crash would be that process's."""
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (here.parents[2], here, here.parents[1])))}
    command = [sys.executable, str(here / "bad_batches.py"), str(tmp_path / "set")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"exit code {done.returncode} after {lines[-1:]}: {done.stderr[-1500:]}"
    *outcomes, doubtful = [line for line in lines if "begins" not in line]
    assert [Scenario(line["kind"], line["place"], line["policy"]) for line in outcomes] == SCENARIOS
    wrong = {scenario.name: line for scenario, line in zip(SCENARIOS, outcomes, strict=True) if not is_right(scenario, line)}
    assert wrong == {}
    assert doubtful["num"] == len(DOUBTFUL) > 30
    assert 0 < doubtful["good"] <= doubtful["num"]
    assert doubtful["judged otherwise"] == doubtful["wrong"] == doubtful["far"] == []


def is_right(scenario: Scenario, outcome: dict[str, Any]) -> bool:
    num_bad = len(PLACES[scenario.place])
    if scenario.policy == "raise":
        error = outcome.get("error", "")
        return f"sample {outcome['sample']}: " in error and "on_error='skip'" in error
    planned = 2 * BATCH - num_bad
    num = planned if scenario.policy == "skip" else 2 * BATCH
    is_applied = (outcome["num"], outcome["bad"]) == (num, num_bad)
    return is_applied and outcome["wrong"] == [] and (scenario.policy == "skip" or outcome["planned"] == planned)
