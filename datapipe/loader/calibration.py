"""What the backends reach on this machine with the data at hand: measured once, then remembered.

Each candidate loads batches for a second or so, end to end: storage, decoding, the copy to the device. The figures
are kept in the user's cache directory under everything they depend on, so that a second run starts at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import filelock
import torch

from datapipe import atomic
from datapipe.backends.images_dali.settings import Dali
from datapipe.loader.choice import Measured
from datapipe.regular_files import read_bytes
from datapipe.user_cache import RATES, user_cache

CANDIDATES: tuple[Dali | None, ...] = (
    None,
    *(Dali(num_pipelines=2, hw_decoder_load=load) for load in (0.0, 0.35, 0.65, 0.9)),
    Dali(num_pipelines=1),
    Dali(num_pipelines=3),
)
_WARMUP_BATCHES = 3
_MEASURED_S = 1.0  # per candidate, and at least _MEASURED_BATCHES
_MEASURED_BATCHES = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibration:
    """How to measure, and what the figures depend on.

    `open_batches(candidate)`: endless batches made by that backend. `circumstances`: JSON-safe; figures are used again
    where all of it is equal.
    """

    open_batches: Callable[[Dali | None], Iterator[Any]]
    circumstances: Mapping[str, Any]

    def rates(self, candidates: Iterable[Dali | None] = CANDIDATES) -> list[Measured]:
        """Of every candidate, from the cache if it was measured before under the same circumstances."""
        candidates = tuple(candidates)
        path = self._path(candidates)
        lock = filelock.FileLock(f"{path}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()  # the other ranks of a node wait, and then read
        except OSError as exc:
            logger.warning("the measured rates of backends cannot be kept (%s); every process measures them anew", exc)
            return self._measure(candidates)
        try:
            rates = _read(path)
            if rates is None:
                rates = self._measure(candidates)
                self._keep(rates, path)
            return rates
        finally:
            lock.release()

    def _measure(self, candidates: tuple[Dali | None, ...]) -> list[Measured]:
        logger.info("measuring backends once on this machine; pass backend=... to choose one yourself")
        return [Measured(candidate, measure(self.open_batches(candidate))) for candidate in candidates]

    def _keep(self, rates: list[Measured], path: Path) -> None:
        values = [{"dali": None if m.dali is None else asdict(m.dali), "images_per_s": m.images_per_s} for m in rates]
        try:
            atomic.write_json(path, {"circumstances": dict(self.circumstances), "rates": values})
        except OSError as exc:
            logger.warning("the measured rates of backends cannot be kept (%s)", exc)

    def _path(self, candidates: tuple[Dali | None, ...]) -> Path:
        known = json.dumps([dict(self.circumstances), repr(candidates)], sort_keys=True)
        name = hashlib.sha256(known.encode()).hexdigest()[:16]
        return user_cache(RATES) / f"{name}.json"


def measure(batches: Iterator[Any]) -> float:
    """Images per second, once the pipeline is full."""
    for _ in range(_WARMUP_BATCHES):
        next(batches)
    _synchronise()
    started, num_images, num_batches = time.perf_counter(), 0, 0
    while num_batches < _MEASURED_BATCHES or time.perf_counter() - started < _MEASURED_S:
        num_images += len(next(batches)[0])
        num_batches += 1
    _synchronise()
    return num_images / (time.perf_counter() - started)


def _synchronise() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _read(path: Path) -> list[Measured] | None:
    """None where nothing usable is kept."""
    try:
        rates = json.loads(read_bytes(path))["rates"]
        return [Measured(None if r["dali"] is None else Dali(**r["dali"]), float(r["images_per_s"])) for r in rates]
    except (OSError, ValueError, KeyError, TypeError):
        return None
