"""Real `datapipe serve` processes, and loaders that use them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

import datapipe as dp
from datapipe.core.environment import importing_as_here
from datapipe.kinds.images.images_cpu import BlockWorker

TOKEN = "token-of-the-tests"
_START_S = 120


class Decoder:
    """A service in a process of its own, for what lies below `top`. `port`: 0 is any free one."""

    def __init__(self, top: Path, *options: str, port: int = 0) -> None:
        self.top = top
        command = [
            sys.executable,
            "-m",
            "datapipe",
            "serve",
            "--listen",
            f"127.0.0.1:{port}",
            "--cores",
            "1",
            "--root",
            str(top),
            *options,
        ]
        environment = importing_as_here() | {"DATAPIPE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert wait([self.process.stdout], _START_S), "the service does not start"
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def workers(self, **options: Any) -> dp.Workers:
        """Return what a loader is given to use it."""
        return dp.Workers(self.url, **{"token": TOKEN, **options})

    def processes(self) -> list[int]:
        """Return its processes that decode, and before them the one that forks them."""
        return descendants(self.process.pid)

    def stop(self, how: int = signal.SIGKILL) -> int:
        """End it, see that nothing of it is left, and return its exit status."""
        family = self.processes()
        self.process.send_signal(how)
        self.process.communicate(timeout=60)
        wait_until(lambda: not any(map(is_alive, family)), what="processes outlive their service")
        return self.process.returncode


def images_made_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of images that this process decodes, block by block, from now on."""
    made: list[int] = []
    load = BlockWorker.load

    def noted(self: BlockWorker, entries: Any, rows: range, *arguments: Any, **options: Any) -> Any:
        made.append(len(rows))
        return load(self, entries, rows, *arguments, **options)

    monkeypatch.setattr(BlockWorker, "load", noted)
    return made


def descendants(pid: int) -> list[int]:
    """Return the processes that a process began, and those that they began."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def is_alive(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(is_so: Callable[[], bool], *, within_s: float = 60, what: str) -> None:
    """Wait until a condition holds; `what` is wrong otherwise."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
