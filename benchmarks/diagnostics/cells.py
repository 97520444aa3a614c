"""The matrix: where a loader stalls, how long, with how many workers, how deep a buffer, how evenly."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.diagnostics.virtual_loader import BatchCost, Store
from datapipe.analysis.predict.replay import Setup

PLACES = ("read", "decode", "augment", "collate", "transfer", "python", "sync", "rank", "lock", "bandwidth", "worker")
STALLS_MS = (0, 1, 5, 20, 100)
JITTERS = ("none", "periodic", "heavy", "rare")
_STORES: dict[str, Store] = {"lock": "lock", "bandwidth": "bandwidth"}
_RARE, _LONG = 0.01, 50.0  # share of the batches, times as long
_SLOW = 4.0  # times as long as the others' that the slow worker's batches take
_ALONE, _TOGETHER = PLACES[:8], tuple(_STORES)
_IN_WORKERS = ("read", "decode", "augment", "collate")
_BARELY_SHORT = ((2, 17.5), (4, 39))  # workers, stall_ms

DEVICE_S = 10e-3  # of work per step
LAUNCH_S = 1e-3  # of the host, to ask for it
CROP, COLOR = "RandomResizedCrop", "ColorJitter"  # transforms; a stall in `augment` is the second's
_HEALTHY = BatchCost(  # a batch before anything goes wrong
    read_s=1e-3, decode_s=0.8e-3, delivery_s=50e-6, transforms_s=((CROP, 0.8e-3), (COLOR, 0.2e-3)), collate_s=1.2e-3
)


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
    def store(self) -> Store | None:
        """What the workers' reads share."""
        return _STORES.get(self.place)

    @property
    def is_together(self) -> bool:
        """Whether workers may wait for each other."""
        return self.store is not None

    @property
    def slow(self) -> float:
        """How many times as long worker 0 takes."""
        return _SLOW if self.place == "worker" else 1.0

    @property
    def is_mostly_stall(self) -> bool:
        """Whether the stall takes longer than all that making a batch takes without it."""
        return self.stall_ms * 1e-3 > _HEALTHY.read_s + _HEALTHY.cpu_s

    @property
    def python_s(self) -> float:
        """Of the host in each step, in addition to launching."""
        return self.stall_ms * 1e-3 if self.place == "python" else 0.0


def matrix() -> list[Cell]:
    """All of it: 8 places x 5 stalls x (0 workers, and 2 or 4 with 3 depths) x 3 jitters; some in which workers share a lock
    or a store, or one of them is slow; a few with few cores, with rare long stalls, and a few in which the loader is short by
    so little that waits are shorter than any stage."""
    loaders = [(0, 1), *itertools.product((2, 4), (1, 2, 8))]
    cells = [
        Cell(place, stall, workers, prefetch, jitter)
        for place, stall, (workers, prefetch), jitter in itertools.product(_ALONE, STALLS_MS, loaders, JITTERS[:3])
    ]
    together = itertools.product(_TOGETHER, (1, 5, 20), (1, 2, 4), (1, 2, 8), ("none", "heavy"))
    cells += [Cell(place, stall, workers, prefetch, jitter) for place, stall, workers, prefetch, jitter in together]
    one_slow = itertools.product((5, 20), (2, 4), (2, 8), ("none", "heavy"))
    cells += [Cell("worker", stall, workers, prefetch, jitter) for stall, workers, prefetch, jitter in one_slow]
    cells += [Cell("read", stall, workers, 2, "rare") for stall, workers in itertools.product((1, 5, 20), (0, 2, 4))]
    crowded = itertools.product((5, 20, 100), (2, 4), (2.0, 3.0), ("none", "heavy"))
    cells += [Cell("decode", stall, workers, 2, jitter, cores) for stall, workers, cores, jitter in crowded]
    return cells + [
        Cell(place, stall, workers, prefetch, "none")
        for place, (workers, stall), prefetch in itertools.product(_IN_WORKERS, _BARELY_SHORT, (1, 2))
    ]


def costs_of(cell: Cell, *, seed: int, num_batches: int, factor: float = 1.0) -> Callable[[int], BatchCost]:
    """What each batch costs. `factor`: on all that making it costs. Another seed draws other jitter of the same kind."""
    stall_s = cell.stall_ms * 1e-3
    draws = np.random.default_rng([zlib.crc32(cell.name.encode()), seed])
    jitter = _jitter(cell.jitter, num_batches, draws)

    def planted(*places: str) -> float:
        return stall_s if cell.place in places else 0.0

    def cost_of(number: int) -> BatchCost:
        uneven = float(jitter[number])
        making = uneven * factor
        crop_s, color_s = (taken_s for _, taken_s in _HEALTHY.transforms_s)
        return BatchCost(
            (_HEALTHY.read_s + planted("read", "rank", "sync", "lock", "bandwidth", "worker")) * making,
            (_HEALTHY.decode_s + planted("decode")) * making,
            _HEALTHY.delivery_s + planted("transfer") * uneven,
            transforms_s=((CROP, crop_s * making), (COLOR, (color_s + planted("augment")) * making)),
            collate_s=_HEALTHY.collate_s * making + planted("collate") * factor,  # once per batch, whatever its samples
        )

    return cost_of


def _jitter(kind: str, num: int, draws: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Factors of mean 1."""
    if kind == "periodic":  # a shard is opened, every so often
        values = np.ones(num)
        values[int(draws.integers(8)) :: 8] = 4.0
        return values * (8 / 11)
    if kind == "rare":  # a store that hangs once in a while
        values = np.ones(num)
        values[draws.random(num) < _RARE] = _LONG
        return values / (1 + _RARE * (_LONG - 1))
    if kind == "heavy":  # log-normal, as long as it is wide
        spread = np.log(2.0)
        return draws.lognormal(-spread / 2, np.sqrt(spread), num)
    return np.ones(num)
