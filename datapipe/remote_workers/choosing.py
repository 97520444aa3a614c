"""`workers="auto"`: which workers there are, and whether they pay, which a loader measures when it is made."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from datapipe.core.ray_cluster import cores_of_others, joined
from datapipe.core.waiting import reported_wait
from datapipe.errors import DatapipeError
from datapipe.kernel.calibration import endless, measure
from datapipe.remote_workers.settings import Workers

AUTO = "auto"
PLACES, CERTIFICATE = "DATAPIPE_WORKERS_AT", "DATAPIPE_CERTIFICATE"  # variables of the environment
_LEAST_GAIN = 0.05  # of the rate, from which workers pay
_NAMED = "workers='auto'"


class Choice(NamedTuple):
    """The workers that are used, and why these, or none."""

    workers: Workers | None
    why: str


def choose(open_loader: Callable[[Workers | None], Iterable[Any]]) -> Choice:
    """Return the workers that there are, if a loader that `open_loader` returns is faster with them than without.

    Measures for some two seconds. Raises OptionError for an environment that names what are no workers.
    """
    found = find()
    if isinstance(found, str):
        return Choice(None, found)

    def rate(workers: Workers | None) -> float:
        with contextlib.closing(endless(open_loader(workers))) as batches:
            return measure(batches)

    try:
        with reported_wait("the rates with and without workers", "measured as workers='auto' asks for it"):
            first, *with_workers, last = (rate(workers) for workers in (None, found, found, None))
    except DatapipeError as exc:
        return Choice(None, f"workers cannot be used: {exc}")
    return judged(found, max(first, last), max(with_workers))


def judged(found: Workers, here: float, both: float) -> Choice:
    """Return the choice after so many samples per second without and with workers."""
    gain = both / here - 1
    measured = f"measured {both:,.0f} samples/s with workers, {here:,.0f} without"
    return Choice(found, measured) if gain >= _LEAST_GAIN else Choice(None, f"they do not pay: {measured}")


def find() -> Workers | str:
    """Return the workers that the environment names, or those that a Ray cluster has room for; else why there are none."""
    places = os.environ.get(PLACES)
    if places:
        return Workers(places, certificate=os.environ.get(CERTIFICATE) or None)
    ray: Any = sys.modules.get("ray")
    if not (ray is not None and ray.is_initialized()) and "RAY_ADDRESS" not in os.environ:
        return f"{PLACES} names none, and this process belongs to no Ray cluster"
    ray = joined(_NAMED, None, _NAMED)
    free = min(sum(cores_of_others(ray)), int(ray.available_resources().get("CPU", 0)))
    return Workers("ray", num_cpus=free) if free else "no other node of the Ray cluster has free cores"
