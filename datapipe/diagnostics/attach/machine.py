"""This process's rank, its machine, and the GPU utilisation by NVML."""

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

from datapipe.core.environment import num_usable_cores, positive_environment


def rank_here() -> int | None:
    """Return the rank of torch's process group if there is one, else the launcher's; None: unknown."""
    with suppress(Exception):
        distributed = sys.modules["torch.distributed"]
        if distributed.is_initialized():  # accelerate's debug_launcher calls all ranks 0 in the environment
            return int(distributed.get_rank())
    with suppress(KeyError, ValueError):
        return int(os.environ["RANK"])
    return None


def surroundings() -> dict[str, Any]:
    """Return JSON-safe facts. `cores`: those that this process may use, shared with the machine's other ranks."""
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
    """Return when this process was started, on the clock of `time.perf_counter_ns`; None if the kernel does not report it."""
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # since the machine was started; see proc(5)
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.perf_counter_ns() - int(age_s * 1e9)
    return None


def _gpu(torch: Any) -> str | None:
    """Return a description of the GPU; None: unknown. Creates no CUDA context if the script has created none."""
    with suppress(Exception):
        if not (torch.version.cuda or torch.version.hip):
            return "none (this torch is built without CUDA)"
        if not torch.cuda.is_available():
            return "none"
        return str(torch.cuda.get_device_name()) if torch.cuda.is_initialized() else "none in use"
    return None


_PERIOD_S = 0.5


class BusySampler:
    """The mean of `read()`, called every `period_s` in a thread that ends with the process or at the first failure."""

    def __init__(self, read: Callable[[], float | None], *, period_s: float = _PERIOD_S) -> None:
        self._read, self._period_s = read, period_s
        self._total, self._num = 0.0, 0
        self._stopped = threading.Event()
        threading.Thread(target=self._sample, name="datapipe-nvml", daemon=True).start()

    def mean(self) -> float | None:
        """Return 0 to 1; None if nothing was read."""
        return self._total / self._num if self._num else None

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped.set()

    def _sample(self) -> None:
        with suppress(Exception):
            while not self._stopped.wait(self._period_s):
                share = self._read()
                if share is not None:
                    self._total, self._num = self._total + share, self._num + 1


def read_busy() -> float | None:
    """Return the mean utilisation of this process's GPUs, 0 to 1; None without a CUDA context. Raises if NVML is not available.

    Its GPUs are those with a context: the current device is no answer, as it is 0 in every thread that has not set another.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    has_context: Any = vars(torch._C)["_cuda_hasPrimaryContext"]
    used = [number for number in range(torch.cuda.device_count()) if has_context(number)]
    return sum(map(torch.cuda.utilization, used)) / (100 * len(used)) if used else None
