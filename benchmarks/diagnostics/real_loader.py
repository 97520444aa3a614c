"""The same faults in torch's own DataLoader: real workers, real queues, time that passes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnostics.virtual_loader import BatchCost


@contextmanager
def _no_advice() -> Iterator[None]:
    """Torch warns of more workers than cores, where these only sleep."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


class _Batches(Dataset[tuple[int, float]]):
    """Batch k takes its time, and says how long that was."""

    def __init__(self, costs: list[BatchCost]) -> None:
        self._costs = costs

    def __len__(self) -> int:
        return len(self._costs)

    def __getitem__(self, number: int) -> tuple[int, float]:
        start = time.perf_counter()
        time.sleep(self._costs[number].stall_s + self._costs[number].cpu_s)
        return number, time.perf_counter() - start


class RealLoader:
    """One pass of torch's DataLoader. `delivery_s` is spent by the caller, as unpacking a batch is."""

    def __init__(self, cost_of: Callable[[int], BatchCost], *, num_batches: int, num_workers: int, prefetch: int) -> None:
        self.windows: list[tuple[float, float]] = []
        self.production_s: list[float] = []
        self._costs = [cost_of(number) for number in range(num_batches)]
        options: dict[str, Any] = {"prefetch_factor": prefetch} if num_workers else {}
        with _no_advice():
            self._loader = DataLoader(_Batches(self._costs), batch_size=None, num_workers=num_workers, **options)
        self._iterator: Any = None

    def num_ready(self) -> int:
        """0, or more than that: the one that is next in order has come, or lies in the queue."""
        iterator = self._iterator
        if iterator is None or not self._loader.num_workers:
            return 0
        return int(len(iterator._task_info.get(iterator._rcvd_idx, ())) == 2 or not iterator._worker_result_queue.empty())

    def __iter__(self) -> Iterator[int]:
        with torch.random.fork_rng(devices=[]), _no_advice():  # starting draws a seed
            entered = time.perf_counter()
            self._iterator = iter(self._loader)
        for cost in self._costs:
            entered = time.perf_counter() if self.windows else entered
            number, production_s = next(self._iterator)
            time.sleep(cost.delivery_s)
            self.production_s.append(float(production_s))
            self.windows.append((entered, time.perf_counter()))
            yield number
