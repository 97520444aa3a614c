"""DistributedDataParallel and fully_shard under torchrun, with torch's distributed checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from host_ranks import on_ranks

import datapipe as dp
from datapipe import transforms as T

HERE = Path(__file__).parent


def torchrun(*arguments: object) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", HERE / "parallel_run.py"]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.nightly
def test_both_stop_in_mid_epoch_and_go_on(shards: Path, tmp_path: Path) -> None:
    """torch.distributed.checkpoint takes the loader itself, together with sharded weights."""
    on_ranks("parallel_run:main", 2, shards, tmp_path / "checkpoint", tmp_path / "first.json", 3)
    torchrun(shards, tmp_path / "checkpoint", tmp_path / "rest.json")
    first, rest = (json.loads((tmp_path / name).read_text()) for name in ("first.json", "rest.json"))
    crop = T.RandomResizedCrop(8)
    loader = dp.DataLoader(shards, 8, shuffle=True, seed=2, num_workers=0, output="dict", transform=crop)
    ranks = [before + after for before, after in zip(first, rest, strict=True)]
    assert [len(part) for part in (*first, *rest)] == [3, 3, 4, 4]
    assert [a + b for a, b in zip(*ranks, strict=True)] == [batch["id"].tolist() for batch in loader]
