"""Measure how fast loaders are, in turns; and each backend with the data at hand, once on a machine, remembering the figures.

A candidate for a backend loads batches for about a second, end to end: storage, decoding, the copy to the device. All are
measured in order and then in reverse, and the better figure of each counts: only the candidate that comes first reads what the
kernel has not cached yet. The figures are kept in the user's cache directory under everything they depend on.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from datapipe.core.environment import driver_version, version_of
from datapipe.core.printable import get_logger
from datapipe.core.user_cache import RATES, remembered
from datapipe.core.waiting import reported_wait
from datapipe.errors import BackendError
from datapipe.kernel.accelerators import device_name, synchronize
from datapipe.kernel.pytree import tensors_of

C = TypeVar("C")

_WARMUP_BATCHES = 3
_MEASURED_S = 0.7  # per candidate and round, and at least _MEASURED_BATCHES
_MEASURED_BATCHES = 4

logger = get_logger(__name__)


def rates_of(
    candidates: Sequence[C],
    open_loader: Callable[[C], Iterable[Any]],
    *,
    device: torch.device,
    packages: Iterable[str],
    circumstances: Mapping[str, Any],
    release: Callable[[], None] = lambda: None,
) -> list[float]:
    """Return the samples per second of each candidate, from the cache if they were measured under the same circumstances before.

    A candidate that raises BackendError has 0, which is logged, and then nothing is kept for later runs.
    `open_loader(candidate)`: returns the batches of an epoch, made by that backend. `circumstances`: JSON-safe; figures are
    reused if all of it is equal, and so are the device's name, the driver and the versions of `packages`. `release`: called
    after the measuring, when the loaders of all candidates are closed: most have lost, and nobody needs what they left in
    memory pools.
    """

    def rate(candidate: C) -> float:
        try:
            with contextlib.closing(endless(open_loader(candidate))) as batches:
                return measure(batches)
        except BackendError as exc:
            logger.warning("%r is left out of the choice of a backend, as it failed when measured: %s", candidate, exc)
            return 0.0

    def make() -> list[float]:
        with reported_wait("the rates of the backends", "measured once on this machine; pass backend=... to choose one yourself"):
            forward = [rate(candidate) for candidate in candidates]
            backward = [rate(candidate) for candidate in reversed(candidates)]
        release()
        return [max(pair) if all(pair) else 0.0 for pair in zip(forward, reversed(backward), strict=True)]

    about = {
        **circumstances,
        "candidates": [repr(candidate) for candidate in candidates],
        "device": device_name(device),
        "driver": driver_version() if device.type == "cuda" else "",
        "versions": {name: version_of(name) for name in packages},
    }
    return remembered(RATES, about, make=make, parse=lambda rates: [float(rate) for rate in rates], is_kept=all)


def arguments_to_measure(arguments: Mapping[str, Any], *, device: str | torch.device, num_samples: int) -> dict[str, Any]:
    """Return a loader's arguments for a measurement: of this rank alone, without the user's functions of batches and workers.

    `num_samples`: of an epoch, which a batch must not exceed.
    """
    return {
        **arguments,
        "ranks": (0, 1),
        "seed": 0,
        "generator": None,
        "device": device,
        "on_error": "skip",
        "batch_size": min(arguments["batch_size"], num_samples),
        "batch_transform": None,
        "worker_init_fn": None,
    }


def ranked(rates: Mapping[Any, float]) -> str:
    """Return rates by name as text, the fastest first."""
    return ", ".join(f"{name} {rate:.3g}" for name, rate in sorted(rates.items(), key=lambda item: -item[1]))


def measure(batches: Iterator[Any]) -> float:
    """Return samples per second in the steady state. Waits for the device on which the batches are."""
    for _ in range(_WARMUP_BATCHES):
        device = tensors_of(next(batches))[0].device
    synchronize(device)
    started, num_samples, num_batches = time.perf_counter(), 0, 0
    while num_batches < _MEASURED_BATCHES or time.perf_counter() - started < _MEASURED_S:
        num_samples += len(tensors_of(next(batches))[0])
        num_batches += 1
    synchronize(device)
    return num_samples / (time.perf_counter() - started)


def in_turns(contenders: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """Return the rates that each contender measures, by round; one more round before these is a warm-up and does not count."""
    with reported_wait("the measurement", f"{' and '.join(contenders)} in turns, {rounds + 1} rounds"):
        by_round = [{name: rate() for name, rate in contenders.items()} for _ in range(rounds + 1)]
    return {name: [rates[name] for rates in by_round[1:]] for name in contenders}


def rate_of(loader: Iterable[Any], num_samples: int, *, device: torch.device) -> float:
    """Return samples per second over at least `num_samples`, in whole batches, over as many epochs as needed."""
    seen, start_s = 0, time.perf_counter()
    while seen < num_samples:
        for batch in loader:
            seen += len(batch[0])
            if seen >= num_samples:
                break
    synchronize(device)  # a batch is delivered before the GPU has made it
    return seen / (time.perf_counter() - start_s)


def power_of_two(number: float) -> int:
    """Round to a power of two, at least 1: another part of the same data is then the same circumstance."""
    return 1 << round(math.log2(max(1, number)))


def endless(loader: Iterable[Any]) -> Generator[Any]:
    """Yield batches, epoch after epoch. Closing it ends the loader's pass."""
    while True:
        yield from loader
