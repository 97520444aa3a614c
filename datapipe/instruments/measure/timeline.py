"""The measurements of each step, in bounded memory, with exact totals.

A step is one `next()` and everything until the next one:

    begin ---- host_wait ---- end ------------- host_work ------------- begin of the next
          ------- gap ------- | --- copy --- | ---------- work -------- |            (on the device)

Steps are rows of a structured array. Times are float64 seconds, and NaN means *not measured*, never zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

STEP = np.dtype(
    [
        ("start_ns", np.int64),  # host clock at begin
        ("pass_id", np.int32),  # one pass over a loader; counted from 0 within a bracket
        ("loader", np.int32),  # the pass's loader, by the number given to the bracket
        ("host_wait_s", np.float64),  # the host in next()
        ("host_work_s", np.float64),  # from there to the next begin
        ("cpu_s", np.float64),  # of all threads of the process, in both; NaN if not known
        ("gap_s", np.float64),  # the device with nothing to do while the host was in next()
        ("copy_s", np.float64),  # the device in copies from the host that the loop requested; NaN if not observed
        ("work_s", np.float64),  # the rest of the step on the device
        ("sync_s", np.float64),  # the host, after next(), waiting for the device; NaN if not observed
        ("num_ready", np.int32),  # batches that could have been handed out at begin; -1: unknown
        ("is_ahead", np.int8),  # the device had not reached this step when the host requested the next; -1: unknown
        ("num_updates", np.int8),  # optimiser steps; 0 while gradients accumulate, -1: not observed
        ("is_first", np.bool_),  # of its pass
        ("is_evaluation", np.bool_),
    ]
)
Steps: TypeAlias = NDArray[np.void]  # (n,) of STEP, in order


@dataclass(slots=True)
class Totals:
    """Exact sums over all training steps, however many are kept."""

    num_steps: int = 0
    host_wait_s: float = 0.0  # the host in next(),
    host_work_s: float = 0.0  # and in the steps between
    num_on_device: int = 0  # steps whose gap and work were measured; the sums below are over these
    gap_s: float = 0.0
    copy_s: float = 0.0
    work_s: float = 0.0

    def add(self, step: dict[str, Any]) -> None:
        self.num_steps += 1
        self.host_wait_s += step["host_wait_s"]
        self.host_work_s += step["host_work_s"]
        if not math.isnan(step["gap_s"]) and not math.isnan(step["work_s"]):
            self.num_on_device += 1
            self.gap_s += step["gap_s"]
            self.copy_s += 0.0 if math.isnan(step["copy_s"]) else step["copy_s"]
            self.work_s += step["work_s"]


@dataclass(slots=True)
class Syncs:
    """Waits for the device under one name, such as `Tensor.item`."""

    num: int = 0
    host_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Context:
    """The bracket's knowledge besides the steps."""

    device: str | None  # the device whose gaps were measured; None: only the host's clock
    num_nested: int = 0  # calls of next() within another one, not measured
    num_elsewhere: int = 0  # calls of next() in other threads, not measured
    trains_elsewhere: bool = False  # the optimiser runs in another thread than the measured next()
    syncs: dict[str, Syncs] = field(default_factory=dict)
    thread: str | None = None  # the name of the measured thread; None: the main thread


class Timeline:
    """The latest `capacity` steps. Written by one thread; `steps()` may be called from any."""

    def __init__(self, capacity: int = 65_536) -> None:
        self.training = Totals()
        self._rows = np.zeros(min(capacity, 1024), STEP)
        self._capacity = capacity
        self._num = 0

    def __len__(self) -> int:
        """Return the number of steps ever added."""
        return self._num

    def add(self, step: dict[str, Any]) -> None:
        """Add a step: every field of STEP by name."""
        if not step["is_evaluation"]:
            self.training.add(step)
        if self._num == len(self._rows) < self._capacity:
            grown = np.zeros(min(2 * len(self._rows), self._capacity), STEP)
            grown[: self._num] = self._rows
            self._rows = grown
        self._rows[self._num % len(self._rows)] = tuple(step[name] for name in _NAMES)
        self._num += 1

    def steps(self, latest: int | None = None) -> Steps:
        """Return a copy of the kept steps, or of the `latest` of them, in order."""
        rows, num = self._rows, self._num
        kept = np.roll(rows, -(num % len(rows))) if num > len(rows) else rows[:num].copy()
        return kept if latest is None else kept[max(0, len(kept) - latest) :]


_NAMES: tuple[str, ...] = tuple(STEP.names or ())
