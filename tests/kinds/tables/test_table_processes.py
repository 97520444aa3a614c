"""Loaders of tables in other processes: interrupted, killed and resumed, forked; and on a device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, pretend_gpus
from table_values import write_table

import datapipe as dp
from datapipe.kernel.pytree import map_nest, tensors_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
NUM_ROWS = 6000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "t.parquet", NUM_ROWS)


_TRAIN = """
    import json, os, sys, time
    import datapipe as dp

    path, log, num_workers, pause_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    loader = dp.TableLoader(path, 50, shuffle=True, seed=1, columns=["row"], num_workers=num_workers, device="cpu")
    if os.path.exists(log):
        loader.load_state_dict(json.loads(open(log).read().splitlines()[-1])["state"])
    with open(log, "a") as out:
        try:
            for batch in loader:
                time.sleep(pause_s)
                out.write(json.dumps({"rows": batch[:, 0].tolist(), "state": loader.state_dict()}) + "\\n")
                out.flush()
        except KeyboardInterrupt:
            print("interrupted")
    """


def start(tmp_path: Path, *arguments: object) -> subprocess.Popen[str]:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(_TRAIN))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_lines(log: Path, num: int) -> None:
    deadline = time.monotonic() + 60
    while not log.exists() or log.read_text().count("\n") < num:
        assert time.monotonic() < deadline, "the script gives no batches"
        time.sleep(0.01)


def rows_in(log: Path) -> list[int]:
    return [row for line in log.read_text().splitlines() for row in json.loads(line)["rows"]]


def test_a_killed_run_goes_on_exactly(table: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    process = start(tmp_path, table, log, 2, 0.02)
    wait_for_lines(log, 15)
    process.kill()
    process.communicate(timeout=30)
    whole_lines = log.read_text().rpartition("\n")[0] + "\n"
    log.write_text(whole_lines)
    num_done = len(rows_in(log))
    assert 0 < num_done < NUM_ROWS
    _, errors = start(tmp_path, table, log, 1, 0).communicate(timeout=60)
    assert errors == ""
    assert sorted(rows_in(log)) == list(range(NUM_ROWS))
    alone = dp.TableLoader(table, 50, shuffle=True, seed=1, columns=["row"], num_workers=0)
    assert rows_in(log) == [row for batch in alone for row in batch[:, 0].tolist()]


@pytest.mark.parametrize("num_workers", [2])
def test_ctrl_c_ends_a_run_cleanly(table: Path, tmp_path: Path, num_workers: int) -> None:
    log = tmp_path / "log.jsonl"
    process = start(tmp_path, table, log, num_workers, 0.02)
    wait_for_lines(log, 5)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out, errors) == (0, "interrupted\n", "")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """A fake device in CUDA's place."""
    device = FakeDevice(seed=7)
    pretend_gpus(monkeypatch, current=2)
    monkeypatch.setattr("datapipe.kinds.tables.kind.runtime_of", lambda _: device)
    yield device
    device.drain()
    assert device.forbidden == []


@pytest.mark.parametrize("tail", ["pad", "mask"])
def test_batches_on_the_device_are_the_cpus(table: Path, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, tail: str) -> None:
    options = {
        "batch_size": 500,
        "shuffle": True,
        "seed": 3,
        "columns": {"a": ["I*"], "b": ["C*"]},
        "label": "label",
        "tail": tail,
    }
    read = []
    for batch in dp.TableLoader(table, device="cuda", backend="tables_arrow", num_workers=2, **options):
        seen = {id(tensor): fake.read(tensor) for tensor in tensors_of(batch)}
        read.append((batch, seen))
    fake.drain()
    monkeypatch.undo()
    expected = list(dp.TableLoader(table, device="cpu", num_workers=0, **options))
    assert len(read) == len(expected) == 12
    for (batch, seen), theirs in zip(read, expected, strict=True):

        def look(tensor: Any, seen: Any = seen) -> Any:
            return seen[id(tensor)]()

        ours = map_nest(batch, look, look)
        for one, other in zip(tensors_of(ours), tensors_of(theirs), strict=True):
            assert torch.equal(one, other)
