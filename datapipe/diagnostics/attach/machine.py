"""Which rank this process is, what it runs on, and how busy NVML calls its GPU."""

from __future__ import annotations

import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from datapipe.cores import num_usable_cores, positive_environment


def rank_here() -> int | None:
    """What torch's process group says, if there is one yet, or else the launcher; None: nothing."""
    with suppress(Exception):
        distributed = sys.modules["torch.distributed"]
        if distributed.is_initialized():  # accelerate's debug_launcher calls all ranks 0 in the environment
            return int(distributed.get_rank())
    with suppress(KeyError, ValueError):
        return int(os.environ["RANK"])
    return None


def surroundings() -> dict[str, Any]:
    """JSON-safe. `cores`: that this process may use, beside the other ranks of the machine."""
    torch = sys.modules.get("torch")
    return {
        "python": platform.python_version(),
        "torch": None if torch is None else str(torch.__version__),
        "cores": max(1, num_usable_cores() // positive_environment("LOCAL_WORLD_SIZE", 1)),
        "gpu": None if torch is None else _gpu(torch),
        "host": socket.gethostname(),
        "platform": platform.platform(),
    }


def process_started_ns() -> int | None:
    """Return when this process was started, on the clock of `time.perf_counter_ns`; None where the kernel does not tell."""
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # since the machine was started; see proc(5)
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.perf_counter_ns() - int(age_s * 1e9)
    return None


def _gpu(torch: Any) -> str | None:
    """In words; None: not known. Makes no CUDA context where the script has made none."""
    with suppress(Exception):
        if not (torch.version.cuda or torch.version.hip):
            return "none (this torch is built without CUDA)"
        if not torch.cuda.is_available():
            return "none"
        return str(torch.cuda.get_device_name()) if torch.cuda.is_initialized() else "none in use"
    return None


_PERIOD_S = 0.5


class BusySampler:
    """The mean of `read()`, asked every `period_s` in a thread that ends with the process or at the first failure."""

    def __init__(self, read: Callable[[], float | None], *, period_s: float = _PERIOD_S) -> None:
        self._read, self._period_s = read, period_s
        self._total, self._num = 0.0, 0
        self._stopped = threading.Event()
        threading.Thread(target=self._sample, name="datapipe-nvml", daemon=True).start()

    def mean(self) -> float | None:
        """0 to 1; None where nothing was read."""
        return self._total / self._num if self._num else None

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def _sample(self) -> None:
        with suppress(Exception):
            while not self._stopped.wait(self._period_s):
                share = self._read()
                if share is not None:
                    self._total, self._num = self._total + share, self._num + 1


def read_busy() -> float | None:
    """Of this process's GPU, 0 to 1; None while the script has made no CUDA context. Raises where NVML is not to be had."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return torch.cuda.utilization() / 100
