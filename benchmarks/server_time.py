"""The CPU time of the benchmark's own object store, which on a machine of its own would take nothing from a loader."""

from __future__ import annotations

import os
import time
from pathlib import Path

SERVER = "DATAPIPE_BENCHMARK_SERVER"  # the environment variable with its process id


class Span:
    """Measures from its creation on."""

    def __init__(self) -> None:
        self.start_s = time.perf_counter()
        self._served_s = _server_cpu_s()

    def rates(self, num_images: int) -> dict[str, float]:
        """Images/s by the clock, and `apart`: without the time that the server took, spread over the cores."""
        spent_s = time.perf_counter() - self.start_s
        served_s = (_server_cpu_s() - self._served_s) / len(os.sched_getaffinity(0))
        return {"images_per_s": num_images / spent_s, "images_per_s_apart": num_images / (spent_s - served_s)}


def _server_cpu_s() -> float:
    """Return the CPU time of the server so far, in seconds; 0 without one."""
    if SERVER not in os.environ:
        return 0.0
    fields = Path("/proc", os.environ[SERVER], "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
