"""Where a result was measured, and how to measure it again."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def describe_environment() -> dict[str, Any]:
    """The machine, the moment and the commit."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def command_of(module: str) -> str:
    """The command line that runs this again."""
    return " ".join(["python -m", module, *sys.argv[1:]])


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:  # no git
        return "unknown"
    return shown.stdout.strip() or "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
