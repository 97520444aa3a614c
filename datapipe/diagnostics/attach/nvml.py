"""How busy NVML calls the GPU: a cross-check, and no more.

NVML counts a GPU as busy while any kernel runs on it, however few of its units that takes, over periods of its own of up to
a second. A GPU that stands still between steps may show 100 %; one that shows little is surely not kept busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

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
