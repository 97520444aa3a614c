"""A loop that takes batches and computes: how long the device stood still for data, by its own clock.

Two moments are marked on the compute stream around each `next()`. A mark is passed when the stream gets there, so
what lies between the two is time in which the stream had nothing to do but wait: for the copy of this batch, or for the
host, which was waiting for it. Nothing is synchronised.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.device import Device

_AHEAD = 8  # steps that the host may be ahead of the device: more would only fill its memory
_TAKEN_AHEAD = 4  # batches that the GPU may lag the host: a training loop does not run ahead without limit either
_LOSSES_KEPT = 8


@dataclass(frozen=True, slots=True)
class Pace:
    """Times per step, in milliseconds."""

    gap_ms: list[float] = field(default_factory=list)  # the device idle around next()
    compute_ms: list[float] = field(default_factory=list)  # the rest of the step
    host_wait_ms: list[float] = field(default_factory=list)  # the host in next()

    def summed_up(self, batch_size: int) -> dict[str, float]:
        total_ms = sum(self.gap_ms) + sum(self.compute_ms)
        return {
            "num_steps": len(self.gap_ms),
            "images_per_s": 1000 * batch_size * len(self.gap_ms) / total_ms,
            "step_ms": total_ms / len(self.gap_ms),
            "compute_ms": statistics.median(self.compute_ms),
            "gap_ms": statistics.median(self.gap_ms),
            "gap_ms_p99": sorted(self.gap_ms)[int(0.99 * (len(self.gap_ms) - 1))],
            "gap_ms_highest": max(self.gap_ms),
            "idle_share": sum(self.gap_ms) / total_ms,
            "host_wait_ms": statistics.median(self.host_wait_ms),
        }


def run_paced(
    batches: Iterator[Any], compute: Callable[[Any], None], device: Device, *, warmup_s: float, seconds: float, min_steps: int = 3
) -> Pace:
    """Steps for so long, after a warm-up. `compute` queues the work of one step."""
    _steps(batches, compute, device, warmup_s, min_steps)
    marks, host_wait_ms = _steps(batches, compute, device, seconds, min_steps)
    device.synchronise()
    pace = Pace(host_wait_ms=host_wait_ms)
    for before, after, end in marks:
        pace.gap_ms.append(device.elapsed_ms(before, after))
        pace.compute_ms.append(device.elapsed_ms(after, end))
    return pace


def _steps(
    batches: Iterator[Any], compute: Callable[[Any], None], device: Device, seconds: float, min_steps: int
) -> tuple[list[tuple[Any, Any, Any]], list[float]]:
    """(before next(), after it, after the step) of each step, and the host's time in next()."""
    marks: list[tuple[Any, Any, Any]] = []
    host_wait_ms: list[float] = []
    behind: deque[Any] = deque()
    began = time.perf_counter()
    before = device.mark()
    while len(marks) < min_steps or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        batch = next(batches)
        host_wait_ms.append((time.perf_counter() - start) * 1e3)
        after = device.mark()
        compute(batch)
        del batch
        end = device.mark()
        marks.append((before, after, end))
        before = end
        behind.append(end)
        if len(behind) > _AHEAD:
            device.wait(behind.popleft())
    return marks, host_wait_ms


# -- what the measurements of several kinds of data share --------------------------------------------


class Taken(NamedTuple):
    """What was taken in some time."""

    num: int
    wall_s: float
    used_mb: float  # of the device's memory, by anybody, at the end


def take(batches: Iterator[Any], device: Device, seconds: float, size_of: Callable[[Any], int] = len) -> Taken:
    """Take batches for so long, at least one, and wait for them. `size_of`: what a batch counts."""
    marks: deque[Any] = deque()
    device.synchronise()
    num, began = 0, time.perf_counter()
    while num == 0 or time.perf_counter() - began < seconds:
        num += size_of(next(batches))
        marks.append(device.mark())
        if len(marks) > _TAKEN_AHEAD:
            device.wait(marks.popleft())
    used_mb = device.used_mb()
    device.synchronise()
    return Taken(num, time.perf_counter() - began, used_mb)


def first_and_steady(
    batches: Iterator[Any], device: Device, arguments: dict[str, Any], size_of: Callable[[Any], int]
) -> tuple[float, Taken]:
    """Return the seconds until the first batch, and what is taken in `seconds` once it runs for `warmup_s`."""
    started = time.perf_counter()
    next(batches)
    device.synchronise()
    first_batch_s = time.perf_counter() - started
    take(batches, device, arguments["warmup_s"], size_of)
    return first_batch_s, take(batches, device, arguments["seconds"], size_of)


def bf16_step(
    loss_of: Callable[[Any], torch.Tensor], optimizer: torch.optim.Optimizer, device: str
) -> tuple[Callable[[Any], None], list[torch.Tensor]]:
    """A step of training in bf16 by what `loss_of` makes of a batch under autocast, and where the first losses go.

    It asks the device for nothing.
    """
    losses: list[torch.Tensor] = []

    def step(batch: Any) -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if len(losses) < _LOSSES_KEPT:
            losses.append(loss.detach())

    return step, losses
