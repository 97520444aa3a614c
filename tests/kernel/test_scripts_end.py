"""A script may end at any moment: in the middle of a pass, and while a daemon thread iterates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, threading
import datapipe as dp
from kind_numbers.data import Numbers

fed = threading.Event()

def iterate():
    while True:
        for batch in dp.DataLoader(Numbers(sys.argv[1]), batch_size=2, num_workers=2):
            fed.set()

threading.Thread(target=iterate, daemon=True).start()
fed.wait(30)
kept = iter(dp.DataLoader(Numbers(sys.argv[1]), batch_size=2, num_workers=2))
next(kept)
sys.exit(5)
"""


@pytest.mark.promise("loader: The script's end")
def test_a_script_ends_while_its_threads_iterate(tmp_path: Path) -> None:
    (tmp_path / "0.numbers").write_text("".join(f"{number}\n" for number in range(100)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "examples" / "extending")))}
    command = [sys.executable, "-c", SCRIPT, tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")
