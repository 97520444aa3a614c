"""Measure a loader of datapipe's and the machine: what a sample costs of each part, and how much of it there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from datapipe.core.environment import importing_as_here, num_usable_cores
from datapipe.core.printable import counted
from datapipe.diagnostics.ceilings.costs import Costs, costs_of
from datapipe.diagnostics.ceilings.lock_watch import watch
from datapipe.diagnostics.ceilings.machine import copy_rate, disk_rate, memory_rate
from datapipe.diagnostics.ceilings.roofline import HIGH, Ceiling, Roofline, in_order, shares_in_words, time_in_words
from datapipe.errors import LifecycleError
from datapipe.stores.location import is_url


def roofline_of(
    loader: Any, path: str, watched: Sequence[str], *, least_samples: int, demand_per_s: float | None = None
) -> Roofline:
    """Measure a loader over what lies at `path`, at least that many samples of it, and the machine.

    `watched`: the command of a process that iterates the same, and whose lock `lock_watch.watch` can watch. `demand_per_s`: what
    a model takes, in samples.
    """
    costs = costs_of(loader, least_samples=least_samples)
    threads, device = max(1, loader.num_workers), loader.device
    ceilings = [
        _cores(costs, num_usable_cores()),
        _disk(costs, path, threads),
        _lock(watched),
        _moved("memory", costs.read_nbytes + costs.batch_nbytes, memory_rate(threads), "what is read, and the batch"),
        _device(costs, device),
    ]
    return Roofline(measured_per_s=1 / costs.wall_s, ceilings=in_order(ceilings), demand_per_s=demand_per_s)


def _cores(costs: Costs, cores: int) -> Ceiling:
    why = f"{time_in_words(costs.cpu_s)} of CPU time on {counted(cores, 'core')}{shares_in_words(costs.stage_s)}"
    return Ceiling(part="cores", per_s=cores / costs.cpu_s, why=why)


def _disk(costs: Costs, path: str, threads: int) -> Ceiling:
    if is_url(path):
        return Ceiling(part="storage", per_s=None, why="an object store: `datapipe bench` measures it cold and warm")
    if not costs.read_nbytes:
        return Ceiling(part="storage", per_s=None, why="this loader does not say how many bytes it reads")
    rate = disk_rate(Path(path), threads)
    if rate is None:
        return Ceiling(part="storage", per_s=None, why=f"no bytes lie at {path}")
    return _moved("storage", costs.read_nbytes, rate, "while the files are not in memory")


def _lock(watched: Sequence[str]) -> Ceiling:
    """Watch another process that does the same: a process cannot see its own lock without taking it."""
    try:
        (span,) = watch(list(watched), importing_as_here(), cwd=Path.cwd())
    except LifecycleError as exc:
        return Ceiling(part="Python's lock", per_s=None, why=str(exc))
    held_s = span["held"] * span["wall_s"]
    return Ceiling(part="Python's lock", per_s=1 / max(held_s, 1 / HIGH), why=f"held for {time_in_words(held_s)}")


def _device(costs: Costs, device: torch.device) -> Ceiling | None:
    rate = copy_rate(device)
    return None if rate is None else _moved(f"copy to {device}", costs.batch_nbytes, rate, "the batch")


def _moved(part: str, nbytes: float, rate: float, what: str) -> Ceiling:
    return Ceiling(part=part, per_s=rate / nbytes, why=f"{nbytes / 1e3:,.0f} kB at {rate / 1e9:.3g} GB/s: {what}")
