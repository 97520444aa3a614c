"""Marks on CUDA streams: events from a pool, queried but never waited for."""

from __future__ import annotations

import time

import torch

from datapipe.diagnostics.measure.clock import Clock, HostClock, Mark

_MS = 1e-3  # cudaEventElapsedTime counts milliseconds


class CudaClock:
    """A `Clock` by CUDA events on the calling thread's current stream.

    `device`: index of the computing device; None: the thread's current one at each mark, which is right if
    `torch.cuda.set_device` was called or there is one GPU. Creates no CUDA context: until the script has created one there
    are no marks. Also none while a graph is captured, since the capture would include the event.
    """

    def __init__(self, device: int | None = None) -> None:
        self._device = device
        self._free: list[torch.cuda.Event] = []

    @property
    def device(self) -> str | None:
        return "cuda"

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def cpu_ns(self) -> int | None:
        return time.process_time_ns()

    def mark(self) -> Mark | None:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return None
        if torch.cuda.is_current_stream_capturing():
            return None
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def is_past(self, mark: Mark) -> bool:
        return bool(mark.query())

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        try:
            return float(start.elapsed_time(end)) * _MS
        except (RuntimeError, ValueError):  # marks on two devices
            return float("nan")

    def wait(self, mark: Mark) -> None:
        mark.synchronize()

    def release(self, mark: Mark) -> None:
        # An event belongs to the device of its first mark; if marks follow the current device, the next may be on another.
        if self._device is not None or torch.cuda.device_count() == 1:
            self._free.append(mark)


def open_clock(device: int | None = None) -> Clock:
    """Return the clock for this machine: CUDA's if torch finds a GPU, else the host's."""
    return CudaClock(device) if torch.cuda.is_available() else HostClock()
