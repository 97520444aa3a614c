"""This process's rank and its machine."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
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


def num_ranks() -> int:
    """Return the number of ranks of torch's process group; 1 without one."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_grouped = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_world_size()) if is_grouped else 1


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
    """Return a description of the GPU, or of another accelerator; None: unknown. Creates no context on it."""
    with suppress(Exception):
        found = torch.accelerator.current_accelerator()
        if found is None:
            return "none (this torch is built for the CPU alone)"
        own = torch.get_device_module(found)
        if not own.is_available():
            return "none"
        return str(own.get_device_name()) if own.is_initialized() else "none in use"
    return None
