"""How busy the GPU's engines are, as the driver tells: JPEG decoders, and any kernel at all."""

from __future__ import annotations

import importlib
import statistics
import threading
from typing import Any

_EVERY_S = 0.1


class EngineMeter:
    """Samples in a thread between `start` and `stop`. Without NVML, or without a GPU, it finds nothing."""

    def __init__(self, device: str) -> None:
        self._handle: Any = None
        self._nvml: Any = None
        self._samples: list[tuple[float, float]] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if device != "cuda":
            return
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByIndex(0)
        except Exception:  # no wheel, no library, no permission: a figure less
            self._handle = None

    def start(self) -> None:
        if self._handle is not None:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()

    def stop(self) -> dict[str, float]:
        """The means, in percent of the time."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if not self._samples:
            return {}
        jpeg, kernels = zip(*self._samples, strict=True)
        return {"jpeg_engine_percent": round(statistics.fmean(jpeg), 1), "kernels_percent": round(statistics.fmean(kernels), 1)}

    def _sample(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            try:
                jpeg = float(self._nvml.nvmlDeviceGetJpgUtilization(self._handle)[0])
                kernels = float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            except Exception:  # not every driver or virtual machine tells
                return
            self._samples.append((jpeg, kernels))
