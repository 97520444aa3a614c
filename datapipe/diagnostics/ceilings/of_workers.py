"""Measure what workers on other machines bring to a loader: this machine alone, theirs alone, and both, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from datapipe.diagnostics.ceilings.costs import costs_of
from datapipe.diagnostics.ceilings.roofline import time_in_words
from datapipe.errors import BackendError
from datapipe.remote_workers.elsewhere import Elsewhere

HERE, ELSEWHERE, BOTH = "this machine alone", "the workers alone", "both"
_NETWORK_S = 2.0


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A way to make samples. The figures are medians over rounds."""

    per_s: float  # samples
    cpu_s: float  # of this machine, for each
    rounds: tuple[float, ...]  # samples per second


class WithWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of a loader without and with workers, and that of the network between them."""

    workers: str  # in words
    ways: dict[str, Way]
    row_nbytes: float  # of what comes from a worker: an image, a clip, an utterance, a unit of an image in a conversation
    network_per_s: float  # bytes that come from all workers together, if they make nothing


def compare(opened: Callable[[str], Any], *, least_samples: int, rounds: int) -> WithWorkers:
    """Measure loaders that `opened` returns for `HERE`, `ELSEWHERE` and `BOTH`.

    Raises BackendError if no worker can be used, and what the loaders raise.
    """
    loaders = {way: opened(way) for way in (HERE, ELSEWHERE, BOTH)}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in loaders}
    for _ in range(rounds):
        for way, loader in loaders.items():
            costs = costs_of(loader, least_samples=least_samples)
            found[way].append((1 / costs.wall_s, costs.cpu_s))
    elsewhere: Elsewhere = loaders[ELSEWHERE].elsewhere
    fleet = elsewhere.fleet
    if fleet is None or not fleet.num_pieces:
        raise BackendError("workers: none of them made a sample; the warnings above say why")
    return WithWorkers(
        workers=fleet.describe(),
        ways={way: _way(rates) for way, rates in found.items()},
        row_nbytes=fleet.nbytes_of_row,
        network_per_s=fleet.network_rate(_NETWORK_S),
    )


def _way(rounds: list[tuple[float, float]]) -> Way:
    rates, cpu = zip(*rounds, strict=True)
    return Way(per_s=statistics.median(rates), cpu_s=statistics.median(cpu), rounds=rates)


def as_json(found: WithWorkers) -> Mapping[str, Any]:
    """Return it as JSON-safe values."""
    builtins: Mapping[str, Any] = msgspec.to_builtins(found)
    return builtins


def as_text(found: WithWorkers) -> str:
    """Return it as lines for people."""
    here, both = found.ways[HERE], found.ways[BOTH]
    lines = [f"workers: {found.workers}"]
    for name, way in found.ways.items():
        of_each = f"{time_in_words(way.cpu_s)} of this machine's CPU time each"
        low, high = min(way.rounds), max(way.rounds)
        lines.append(f"  {name:<20}{way.per_s:>10,.0f} samples/s   {of_each}   (rounds {low:,.0f} to {high:,.0f})")
    network, at = found.network_per_s / max(1.0, found.row_nbytes), f"{found.network_per_s / 1e9:.3g} GB/s"
    lines.append(
        f"  {'network':<20}{network:>10,.0f} rows/s      of {found.row_nbytes / 1e3:,.0f} kB at {at}, if it does nothing else"
    )
    lines.append(f"With the workers it is {both.per_s / here.per_s:.2f} times as fast.")
    return "\n".join(lines)
