"""The utilisation of NVIDIA's GPUs, by NVML."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

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
