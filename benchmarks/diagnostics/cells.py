"""The matrix: where a loader stalls, how long, with how many workers, how deep a buffer, how evenly."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.diagnostics.virtual_loader import BatchCost
from datapipe.diagnostics.replay import Setup

PLACES = ("read", "decode", "augment", "collate", "transfer", "python", "sync", "rank")
STALLS_MS = (0, 1, 5, 20, 100)
JITTERS = ("none", "periodic", "heavy")

DEVICE_S = 10e-3  # of work per step
LAUNCH_S = 1e-3  # of the host, to ask for it
_STALL_S, _CPU_S, _DELIVERY_S = 1e-3, 3e-3, 50e-6  # a batch before anything goes wrong


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault in one loader."""

    place: str
    stall_ms: float
    num_workers: int
    prefetch: int
    jitter: str
    num_cores: float | None = None

    @property
    def name(self) -> str:
        cores = "" if self.num_cores is None else f"/c{self.num_cores:g}"
        return f"{self.place}/{self.stall_ms:g}ms/w{self.num_workers}/p{self.prefetch}/{self.jitter}{cores}"

    @property
    def setup(self) -> Setup:
        return Setup(self.num_workers, max(1, self.num_workers * self.prefetch), num_cores=self.num_cores)

    @property
    def is_synced(self) -> bool:
        return self.place == "sync"

    @property
    def python_s(self) -> float:
        """Of the host in each step, beside launching."""
        return self.stall_ms * 1e-3 if self.place == "python" else 0.0


def matrix() -> list[Cell]:
    """All of it: 8 places x 5 stalls x (0 workers, and 2 or 4 with 3 depths) x 3 jitters; and a few with few cores."""
    loaders = [(0, 1), *itertools.product((2, 4), (1, 2, 8))]
    cells = [
        Cell(place, stall, workers, prefetch, jitter)
        for place, stall, (workers, prefetch), jitter in itertools.product(PLACES, STALLS_MS, loaders, JITTERS)
    ]
    crowded = itertools.product((5, 20, 100), (2, 4), (2.0, 3.0), ("none", "heavy"))
    return cells + [Cell("decode", stall, workers, 2, jitter, cores) for stall, workers, cores, jitter in crowded]


def costs_of(cell: Cell, *, seed: int, num_batches: int, factor: float = 1.0) -> Callable[[int], BatchCost]:
    """What each batch costs. `factor`: on all that making it costs. Another seed draws other jitter of the same kind."""
    stall_s = cell.stall_ms * 1e-3
    draws = np.random.default_rng([zlib.crc32(cell.name.encode()), seed])
    jitter = _jitter(cell.jitter, num_batches, draws)

    def cost_of(number: int) -> BatchCost:
        waits, works, delivery = _STALL_S, _CPU_S, _DELIVERY_S
        if cell.place in ("read", "rank", "sync"):
            waits += stall_s
        elif cell.place in ("decode", "augment"):
            works += stall_s
        uneven = float(jitter[number])
        waits, works = waits * uneven * factor, works * uneven * factor
        if cell.place == "collate":  # once per batch, whatever its samples
            works += stall_s * factor
        elif cell.place == "transfer":
            delivery += stall_s * uneven
        return BatchCost(waits, works, delivery)

    return cost_of


def _jitter(kind: str, num: int, draws: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Factors of mean 1."""
    if kind == "periodic":  # a shard is opened, every so often
        values = np.ones(num)
        values[int(draws.integers(8)) :: 8] = 4.0
        return values * (8 / 11)
    if kind == "heavy":  # log-normal, as long as it is wide
        spread = np.log(2.0)
        return draws.lognormal(-spread / 2, np.sqrt(spread), num)
    return np.ones(num)
