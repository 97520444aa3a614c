"""Any bit of an index, a manifest or a cache may flip: it is detected or does not matter, and never ends the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bit_flips import READERS
from fixtures import convert, mostly_nightly

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("bit_flips.py")
NUM_FLIPS = 400


@pytest.mark.daily(1)
@pytest.mark.parametrize("what", mostly_nightly(READERS, "sidecar", "cache data"))
def test_a_flipped_bit_is_told_or_does_not_matter(what: str, folder: Path, tmp_path: Path) -> None:
    directory = tmp_path / "cache" if what.startswith("cache") else convert(folder, tmp_path / "set")
    command = [sys.executable, str(DRIVER), what, str(directory), str(NUM_FLIPS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert sum(counts.values()) == NUM_FLIPS
    if what == "sidecar without hash":  # numbers may differ, as long as they are possible
        assert counts["refused"] > NUM_FLIPS // 10
    else:
        assert counts["wrong"] == 0
    if what in ("sidecar", "dataset.json"):
        assert counts["refused"] > NUM_FLIPS * 9 // 10
