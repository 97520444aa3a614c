"""A training by a framework, watched by a monitor: one line, figures where the framework logs, and a recording."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures import timed
from host_ranks import needs

from datapipe.instruments.measure.recorded import read_processes


@pytest.mark.nightly
@pytest.mark.parametrize("host", ["lightning", "trainer", "accelerate"])
def test_a_starved_training_says_so_once_and_logs_its_figures(host: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    needs({"trainer": "transformers"}.get(host, host))

    @timed
    def run() -> None:
        saves = tmp_path_factory.mktemp(host)
        script = Path(__file__).with_name("monitored_runs.py")
        done = subprocess.run([sys.executable, str(script), host, str(saves)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("datapipe")]
        assert len(lines) == 1
        assert "the training waits for data " in lines[0]
        assert lines[0].endswith(f"of the time: read; `datapipe diagnose {saves / 'run.dpr'}` says more")
        figures = [(one, step) for one, step in json.loads((saves / "logged.json").read_text()) if "data/waiting" in one]
        assert len(figures) >= 3
        assert all(0.3 < one["data/waiting"] <= 1 and one["data/supply"] > 0 and step > 0 for one, step in figures)
        (process,), notes = read_processes(saves / "run.dpr")
        assert not notes
        assert process.num_training_steps == 260

    run()
