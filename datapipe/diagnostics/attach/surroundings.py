"""Which rank this is, and what it runs on."""

from __future__ import annotations

import os
import platform
import socket
import sys
from contextlib import suppress
from typing import Any

from datapipe.cores import num_usable_cores, positive_environment


def rank_here() -> int | None:
    """What the launcher says; None: nothing."""
    try:
        return int(os.environ["RANK"])
    except (KeyError, ValueError):
        return None


def surroundings() -> dict[str, Any]:
    """JSON-safe. `cores`: that this process may use, beside the other ranks of the machine."""
    torch = sys.modules.get("torch")
    gpu = None
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            gpu = torch.cuda.get_device_name()
    return {
        "python": platform.python_version(),
        "torch": getattr(torch, "__version__", None),
        "cores": max(1, num_usable_cores() // positive_environment("LOCAL_WORLD_SIZE", 1)),
        "gpu": gpu,
        "host": socket.gethostname(),
        "platform": platform.platform(),
    }
