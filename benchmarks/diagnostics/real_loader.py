"""The same faults in torch's own DataLoader: real workers, real queues, time that passes, in the place that is meant."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnostics.virtual_loader import BatchCost
from datapipe.analysis.judge.breakdown import COLLATE, CORES, DECODE, Stage

_BATCH_SIZE = 2
_BLOCK = bytes(1 << 14)


class Spender:
    """Spends what a batch costs on the CPU: on a core, or asleep. Knows how much of it went by without a core."""

    def __init__(self, *, computes: bool) -> None:
        self._computes = computes
        self._spent = dict[Stage, float]()

    def spend(self, stage: Stage, seconds: float) -> None:
        """Use `seconds` of CPU time; other threads may run meanwhile, as during decoding."""
        if not self._computes:
            time.sleep(seconds)
            return
        start, now = time.perf_counter(), time.thread_time()
        until = now + seconds
        while now < until:
            hashlib.sha256(_BLOCK)  # without the interpreter's lock
            now = time.thread_time()
        self._add(stage, seconds)
        self._add(CORES, max(0.0, time.perf_counter() - start - seconds))

    def spent(self) -> dict[Stage, float]:
        """The time since the last call, by stage."""
        spent, self._spent = self._spent, {}
        return spent

    def _add(self, stage: Stage, seconds: float) -> None:
        self._spent[stage] = self._spent.get(stage, 0.0) + seconds


@contextmanager
def _no_advice() -> Iterator[None]:
    """Torch warns of more workers than cores, where these only sleep."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


class Compose:
    """Transforms, one after the other."""

    def __init__(self, transforms: Sequence[Callable[[int], int]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, sample: int) -> int:
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class _Transform:
    """Takes its time, and changes nothing."""

    def __init__(self, costs: list[BatchCost], place: int, spender: Spender) -> None:
        self._costs, self._place, self._spender = costs, place, spender

    def __call__(self, sample: int) -> int:
        name, taken_s = self._costs[sample // _BATCH_SIZE].transforms_s[self._place]
        self._spender.spend(("transform", name), taken_s / _BATCH_SIZE)
        return sample


class RandomResizedCrop(_Transform): ...


class ColorJitter(_Transform): ...


class _Samples(Dataset[int]):
    """Sample k is k, which is read, decoded and transformed."""

    def __init__(self, costs: list[BatchCost], spender: Spender) -> None:
        self._costs, self._spender = costs, spender
        self.transform = Compose([RandomResizedCrop(costs, 0, spender), ColorJitter(costs, 1, spender)])

    def __len__(self) -> int:
        return len(self._costs) * _BATCH_SIZE

    def __getitem__(self, number: int) -> int:
        cost = self._costs[number // _BATCH_SIZE]
        time.sleep(cost.read_s / _BATCH_SIZE)
        self._spender.spend(DECODE, cost.decode_s / _BATCH_SIZE)
        return self.transform(number)


class _Batch:
    """Takes `opening_s` to unpickle. `spent`: what making it took on the CPU, and without a core."""

    def __init__(self, opening_s: float, spent: dict[Stage, float]) -> None:
        self._opening_s = opening_s
        self.spent = spent

    def __reduce__(self) -> tuple[Callable[..., _Batch], tuple[Any, ...]]:
        return _opened, (self._opening_s, self.spent)


def _opened(opening_s: float, spent: dict[Stage, float]) -> _Batch:
    time.sleep(opening_s)
    return _Batch(opening_s, spent)


class _Collate:
    def __init__(self, costs: list[BatchCost], spender: Spender) -> None:
        self._costs, self._spender = costs, spender

    def __call__(self, samples: list[int]) -> _Batch:
        cost = self._costs[samples[0] // _BATCH_SIZE]
        self._spender.spend(COLLATE, cost.collate_s)
        return _Batch(cost.delivery_s, self._spender.spent())


class RealLoader:
    """One pass of torch's DataLoader. `computes`: what costs CPU time keeps a core busy; else all costs are slept."""

    def __init__(
        self,
        cost_of: Callable[[int], BatchCost],
        *,
        num_batches: int,
        num_workers: int,
        prefetch: int,
        computes: bool = False,
        in_order: bool = True,
    ) -> None:
        self.windows: list[tuple[float, float]] = []  # of the host in next(), by the loader's own count
        self.spent_s: dict[Stage, float] = {}  # where CPU time went, and what went by without a core
        self._num_batches = num_batches
        costs = [cost_of(number) for number in range(num_batches)]
        spender = Spender(computes=computes)
        options: dict[str, Any] = {"prefetch_factor": prefetch} if num_workers else {}
        with _no_advice():
            self._loader = DataLoader(
                _Samples(costs, spender),
                batch_size=_BATCH_SIZE,
                collate_fn=_Collate(costs, spender),
                num_workers=num_workers,
                in_order=in_order,
                **options,
            )

    def num_ready(self) -> int:
        """Not known here: an attachment tells it of torch's iterators."""
        return 0

    def __iter__(self) -> Iterator[Any]:
        with torch.random.fork_rng(devices=[]), _no_advice():  # starting draws a seed
            batches = iter(self._loader)
        for _ in range(self._num_batches):
            entered = time.perf_counter()
            batch = next(batches)
            self.windows.append((entered, time.perf_counter()))
            for stage, seconds in batch.spent.items():
                self.spent_s[stage] = self.spent_s.get(stage, 0.0) + seconds
            yield batch
