"""A training run over tokens may die at any moment, and go on with other ranks: it has each row once, in the same order."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from token_corpora import random_documents, write_datatrove
from token_training import EPOCHS, Settings, as_script, data_of, loaders_of, steps_of

ROOT = Path(__file__).resolve().parents[3]
OTHER_RANKS = (8, 2, 16)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("num_corpora", "ranks", "balance", "num_kills"),
    [
        pytest.param(1, (1,), None, 8, id="one corpus"),
        pytest.param(2, OTHER_RANKS, "step", 8, id="mixed, other ranks, balanced"),
    ],
)
def test_a_killed_run_consumes_what_an_undisturbed_one_does(
    num_corpora: int, ranks: tuple[int, ...], balance: str | None, num_kills: int, tmp_path: Path
) -> None:
    corpora = [
        str(write_datatrove(tmp_path / f"{number}", random_documents(450 - 200 * number, most=70, seed=number)))
        for number in range(num_corpora)
    ]
    out = tmp_path / "out"
    out.mkdir()
    settings = Settings(corpora, str(out), balance=balance)
    alone = loaders_of(replace(settings, num_workers=0))
    expected = "".join(line for _ in range(EPOCHS) for line in steps_of(alone))
    rows = [row for line in expected.splitlines() for row, _ in json.loads(line)[1]]
    num = len(data_of(settings))
    for epoch in range(EPOCHS):
        assert sorted(rows[epoch * num : (epoch + 1) * num]) == list(range(num))
    assert rows[:num] != rows[num:]

    moments, num_killed = random.Random(num_kills), 0
    for num_ranks in itertools.cycle(ranks):
        is_last = num_killed == num_kills
        command = as_script(replace(settings, num_ranks=num_ranks))
        num_saves = 1000 if is_last else moments.randrange(1, 5)
        num_killed += is_killed_after(num_saves, command, settings, moments.uniform(0, 0.05))
        if settings.state.exists() and json.loads(settings.state.read_text())["epochs"] == EPOCHS:
            assert settings.log.read_text() == expected
            if is_last:
                break
            settings.state.unlink()
            settings.log.unlink()
    assert num_killed == num_kills


def is_killed_after(num_saves: int, command: list[str], settings: Settings, delay_s: float) -> bool:
    """Run the command, and kill it some time after it has saved so many states; False if it ends before, without an error."""
    environment = {name: value for name, value in os.environ.items() if name != "DATAPIPE_WORKERS"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "tests", Path(__file__).parent)))
    saved = settings.state.stat().st_mtime_ns if settings.state.exists() else 0
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and num_saves:
            now = settings.state.stat().st_mtime_ns if settings.state.exists() else 0
            num_saves -= now != saved
            saved = now
            time.sleep(0.001)
        time.sleep(delay_s)
        is_killed = process.poll() is None
        process.kill()
        _, errors = process.communicate(timeout=60)
    assert is_killed or process.returncode == 0, errors
    return is_killed
