"""Put what a sample costs and what the machine can do together: the ceilings, the lowest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from datapipe.core.environment import importing_as_here, num_usable_cores
from datapipe.core.printable import counted
from datapipe.diagnostics.ceilings.costs import Costs, costs_of
from datapipe.diagnostics.ceilings.lock_watch import watch
from datapipe.diagnostics.ceilings.machine import copy_rate, disk_rate, memory_rate
from datapipe.errors import LifecycleError
from datapipe.stores.location import is_url

_BAR = 30
_HIGH = 1e9  # samples per second: a higher ceiling is none


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """What one part of the machine could bring if nothing else took time."""

    part: str
    per_s: float | None  # samples; None: not measured
    why: str  # what a sample costs of it, and how much there is; or why it was not measured


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of a loader, and its ceilings."""

    measured_per_s: float  # samples
    ceilings: tuple[Ceiling, ...]  # the lowest first, those that were not measured last
    demand_per_s: float | None = None  # of the model; None: not given

    @property
    def known(self) -> list[tuple[Ceiling, float]]:
        return [(one, one.per_s) for one in self.ceilings if one.per_s is not None]


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
    found = sorted((one for one in ceilings if one is not None), key=lambda one: one.per_s or float("inf"))
    return Roofline(measured_per_s=1 / costs.wall_s, ceilings=tuple(found), demand_per_s=demand_per_s)


def _cores(costs: Costs, cores: int) -> Ceiling:
    stages = sorted(costs.stage_s.items(), key=lambda one: -one[1])
    total_s = sum(costs.stage_s.values())
    shares = ", ".join(f"{stage} {spent / total_s:.0%}" for stage, spent in stages if spent >= 0.01 * total_s)
    why = f"{_time(costs.cpu_s)} of CPU time on {counted(cores, 'core')}" + (f": {shares}" if shares else "")
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
    return Ceiling(part="Python's lock", per_s=1 / max(held_s, 1 / _HIGH), why=f"held for {_time(held_s)}")


def _device(costs: Costs, device: torch.device) -> Ceiling | None:
    rate = copy_rate(device)
    return None if rate is None else _moved(f"copy to {device}", costs.batch_nbytes, rate, "the batch")


def _moved(part: str, nbytes: float, rate: float, what: str) -> Ceiling:
    return Ceiling(part=part, per_s=rate / nbytes, why=f"{nbytes / 1e3:,.0f} kB at {rate / 1e9:.3g} GB/s: {what}")


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def as_text(found: Roofline) -> str:
    """Return the rate and the ceilings as lines for people, each with a bar of how much of it is used."""
    measured = found.measured_per_s
    lines = [
        f"  {'measured':<16}{measured:>12,.0f} samples/s",
        "Ceilings, if nothing else took time, and what a sample takes:",
    ]
    for one in found.ceilings:
        if one.per_s is None:
            lines.append(f"  {one.part:<16}{'not measured':>12}  {one.why}")
            continue
        used = min(1.0, measured / one.per_s)
        bar = "#" * round(used * _BAR)
        lines.append(f"  {one.part:<16}{one.per_s:>12,.0f}  {bar:.<{_BAR}} {used:>4.0%}  {one.why}")
    return "\n".join([*lines, *_conclusions(found)])


def _conclusions(found: Roofline) -> list[str]:
    """Return which ceiling is the lowest and how far the next is, and whether the model's demand is met."""
    (lowest, low), *rest = found.known
    used = found.measured_per_s / low
    text = f"The lowest ceiling is {lowest.part}, {used:.0%} used"
    text += f"; with more of that, the next is {rest[0][0].part}, {rest[0][1] / low:.3g} times as high." if rest else "."
    lines = [text]
    if found.demand_per_s is not None:
        ratio = found.measured_per_s / found.demand_per_s
        met = "the loader keeps up" if ratio >= 1 else f"it waits for data {1 - ratio:.0%} of the time"
        beyond = [one.part for one, per_s in found.known if per_s < found.demand_per_s]
        more = f"; too low for it: {', '.join(beyond)}" if beyond else ""
        lines.append(f"The model takes {found.demand_per_s:,.0f} samples/s: {met}{more}.")
    return lines


def as_json(found: Roofline) -> Mapping[str, Any]:
    """Return it as JSON-safe values."""
    builtins: Mapping[str, Any] = msgspec.to_builtins(found)
    return builtins
