"""Measure how fast each backend is on this machine with the data at hand, once, and remember the figures.

Each candidate loads batches for about a second, end to end: storage, decoding, the copy to the device. All are measured in
order and then in reverse, and the better figure of each counts: only the candidate that comes first reads what the
kernel has not cached yet. The figures are kept in the user's cache directory under everything they depend on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from datapipe.backends.images_dali.settings import Dali
from datapipe.core.printable import get_logger
from datapipe.core.user_cache import RATES, remembered
from datapipe.loader.images.choice import Measured

CANDIDATES: tuple[Dali | None, ...] = (None, Dali(num_pipelines=1), Dali(num_pipelines=2), Dali(num_pipelines=3))
_WARMUP_BATCHES = 3
_MEASURED_S = 0.7  # per candidate and round, and at least _MEASURED_BATCHES
_MEASURED_BATCHES = 4

logger = get_logger(__name__)


@dataclass(frozen=True)
class Calibration:
    """How to measure the candidates, and what the figures depend on.

    `open_batches(candidate)`: returns endless batches made by that backend. `circumstances`: JSON-safe; figures are reused
    if all of it is equal.
    """

    open_batches: Callable[[Dali | None], Iterator[Any]]
    circumstances: Mapping[str, Any]

    def rates(self, candidates: Iterable[Dali | None] = CANDIDATES) -> list[Measured]:
        """Return the rate of every candidate, from the cache if it was measured before under the same circumstances."""
        candidates = tuple(candidates)
        circumstances = {**self.circumstances, "candidates": [_settings(candidate) for candidate in candidates]}
        return remembered(RATES, circumstances, make=lambda: self._measure(candidates), parse=_parse)

    def _measure(self, candidates: tuple[Dali | None, ...]) -> list[dict[str, Any]]:
        logger.info("measuring backends once on this machine; pass backend=... to choose one yourself")
        forward = [measure(self.open_batches(candidate)) for candidate in candidates]
        backward = [measure(self.open_batches(candidate)) for candidate in reversed(candidates)]
        best = map(max, forward, reversed(backward))
        return [{"dali": _settings(dali), "images_per_s": rate} for dali, rate in zip(candidates, best, strict=True)]


def measure(batches: Iterator[Any]) -> float:
    """Return images per second in the steady state. Waits for the device on which the images are."""
    for _ in range(_WARMUP_BATCHES):
        device = next(batches)[0].device
    _synchronise(device)
    started, num_images, num_batches = time.perf_counter(), 0, 0
    while num_batches < _MEASURED_BATCHES or time.perf_counter() - started < _MEASURED_S:
        num_images += len(next(batches)[0])
        num_batches += 1
    _synchronise(device)
    return num_images / (time.perf_counter() - started)


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":  # which need not be the current one
        torch.cuda.synchronize(device)


def _settings(dali: Dali | None) -> dict[str, Any] | None:
    return None if dali is None else asdict(dali)


def _parse(rates: Any) -> list[Measured]:
    return [Measured(None if r["dali"] is None else Dali(**r["dali"]), float(r["images_per_s"])) for r in rates]
