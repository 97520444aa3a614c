"""The GPU as the check uses it, and a stand-in by which the same lines run on a CPU.

On the stand-in streams and events are the host's own order and clock: it shows that the lines run, not that a GPU
would agree.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

MB = 1e6
_SIDE = 4096  # of the matrices that are multiplied to keep multiprocessors busy
_BF16_PER_MS = 7e11  # operations: about what a large GPU does


class Device(Protocol):
    """What stages ask of it."""

    name: str  # as torch calls it

    def synchronise(self) -> None: ...

    def mark(self) -> Any:
        """A moment on the current stream."""

    def is_past(self, mark: Any) -> bool: ...

    def wait(self, mark: Any) -> None:
        """Let the host wait for it."""

    def elapsed_ms(self, first: Any, second: Any) -> float:
        """Between two moments that are past."""

    def keep_busy(self, duration_ms: float) -> None:
        """Put so much work on the current stream; returns at once on a GPU."""

    def compete(self, duration_ms: float) -> None:
        """Put that much arithmetic on a stream of its own, parallel to the current one; returns at once on a GPU."""

    def capture(self, work: Callable[[], object], mode: str, wait_s: float) -> Callable[[], None]:
        """Capture `work` as a graph, in that error mode, waiting for so long in between; what replays it."""

    def side_stream(self) -> AbstractContextManager[Any]:
        """What is done within goes to a new stream, which begins after the current one's work so far."""

    def used_mb(self) -> float:
        """Device memory in use by anybody: DALI's is not torch's."""

    def free_unused(self) -> None:
        """Let torch give back what it keeps for later."""


class Cuda:
    """The current CUDA device."""

    name = "cuda"

    def __init__(self) -> None:
        self._cycles_per_ms = 0.0
        self._rival: Any = None  # the stream of `compete`

    def synchronise(self) -> None:
        torch.cuda.synchronize()

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def is_past(self, mark: Any) -> bool:
        return bool(mark.query())

    def wait(self, mark: Any) -> None:
        mark.synchronize()

    def elapsed_ms(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second))

    def keep_busy(self, duration_ms: float) -> None:
        if not self._cycles_per_ms:
            self._cycles_per_ms = self._measured_cycles_per_ms()
        torch.cuda._sleep(int(duration_ms * self._cycles_per_ms))  # type: ignore[no-untyped-call]

    def compete(self, duration_ms: float) -> None:
        if self._rival is None:
            self._rival = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._matrix = torch.randn((_SIDE, _SIDE), device=self.name, dtype=torch.bfloat16)
            self.synchronise()
        num = max(1, round(duration_ms * _BF16_PER_MS / (2 * _SIDE**3)))
        with torch.cuda.stream(self._rival):
            for _ in range(num):
                torch.mm(self._matrix, self._matrix)

    def capture(self, work: Callable[[], object], mode: str, wait_s: float) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            work()
            time.sleep(wait_s)
        return lambda: graph.replay()

    def side_stream(self) -> AbstractContextManager[Any]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(stream)

    def used_mb(self) -> float:
        free, total = torch.cuda.mem_get_info()
        return (total - free) / MB

    def free_unused(self) -> None:
        torch.cuda.empty_cache()

    def _measured_cycles_per_ms(self) -> float:
        """The sleeping kernel counts cycles of a clock that is not known beforehand."""
        cycles = 50_000_000
        for _ in range(4):  # an idle GPU's clock is slow
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        first = self.mark()
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        second = self.mark()
        self.wait(second)
        return cycles / self.elapsed_ms(first, second)


class StandIn:
    """The host, where there is no GPU."""

    name = "cpu"

    def synchronise(self) -> None:
        pass

    def mark(self) -> Any:
        return time.perf_counter()

    def is_past(self, mark: Any) -> bool:
        return True

    def wait(self, mark: Any) -> None:
        pass

    def elapsed_ms(self, first: Any, second: Any) -> float:
        return float(second - first) * 1e3

    def keep_busy(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1e3)

    def compete(self, duration_ms: float) -> None:
        pass

    def capture(self, work: Callable[[], object], mode: str, wait_s: float) -> Callable[[], None]:
        def replay() -> None:
            work()

        time.sleep(wait_s)
        return replay

    def side_stream(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def used_mb(self) -> float:
        return 0.0

    def free_unused(self) -> None:
        pass


def open_device(name: str) -> Device:
    """Of "cuda" or "cpu". Raises SystemExit where torch finds no GPU."""
    if name == "cpu":
        return StandIn()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU; --dry-run goes through the same stages on the CPU")
    return Cuda()
