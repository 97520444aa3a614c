"""When weights change, at which learning rate, and when to stop: functions of the step and pure values.

Several batches make one step, weighted as if they were one large batch. Each adds the gradient of `sum of its losses /
nominal`, where `nominal` is the number of samples of a full step on this rank. After the last batch, gradients are multiplied
by `nominal / real samples`. That is exact for short batches, masked samples, the rest of an epoch, and ranks whose numbers of
samples differ.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from datapipe.core.errors import OptionError


@dataclass(frozen=True, slots=True)
class Schedule:
    """The share of the top learning rate at each of `num_steps` steps.

    Step k of the warm-up has (k + 1) / warmup_steps. After that the share falls from 1 as 1 + cos (Loshchilov and Hutter,
    "SGDR", 2017), and would reach `final` at the step after the last.
    """

    num_steps: int
    warmup_steps: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps <= self.num_steps:
            raise OptionError(f"warmup_steps is {self.warmup_steps}; it must lie between 0 and num_steps = {self.num_steps}")

    @classmethod
    def of(cls, num_steps: int, *, warmup: float, final: float) -> Schedule:
        """Return a schedule with `warmup` as a share of the steps."""
        return cls(num_steps, round(warmup * num_steps), final)

    def __call__(self, step: int) -> float:
        """Return the share at `step`, which counts from 0. From `num_steps` on it is `final`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if step >= self.num_steps:
            return self.final
        done = (step - self.warmup_steps) / (self.num_steps - self.warmup_steps)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done))


def set_rate(groups: Iterable[dict[str, Any]], rates: Iterable[float], share: float) -> None:
    """Give each parameter group of an optimiser its own top rate times `share`."""
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate * share


def ends_step(batch: int, *, num_batches: int, accumulate: int) -> bool:
    """Return True if the weights change after this batch (from 0) of an epoch; its last batch always ends a step."""
    return (batch + 1) % accumulate == 0 or batch + 1 == num_batches


def steps_per_epoch(num_batches: int, accumulate: int) -> int:
    """Return the number of weight updates; the last may use fewer batches."""
    return -(-num_batches // accumulate)


def scale_gradients(parameters: Iterable[torch.Tensor], nominal: float, num_real: float | torch.Tensor) -> None:
    """Turn gradients of `sum of losses / nominal` into those of the mean over `num_real` samples, in place.

    Under DDP, which averages over ranks, pass the mean over ranks as `num_real`. If the two are equal nothing changes. A
    tensor is not read on the host. With no samples the gradients, which are 0, stay unchanged.
    """
    if not isinstance(num_real, torch.Tensor):
        if num_real == nominal:
            return
        num_real = torch.tensor(float(num_real))
    factor = nominal / num_real.clamp(min=1e-9)
    factor = torch.where(num_real > 0, factor, torch.ones_like(factor))
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, factor.to(gradients[0].device, torch.float32))


@dataclass(frozen=True, slots=True)
class Best:
    """The best validation so far. Immutable: each epoch makes a new one."""

    value: float | None = None  # accuracy or loss, whichever is watched
    epoch: int | None = None
    num_worse: int = 0  # epochs since

    def after(self, epoch: int, value: float, *, higher_is_better: bool, min_delta: float = 0.0) -> Best:
        """Return the best after `epoch` gave `value`. A NaN is never the best."""
        gain = 0.0 if self.value is None else value - self.value if higher_is_better else self.value - value
        if value == value and (self.value is None or gain > min_delta):
            return Best(value, epoch)
        return dataclasses.replace(self, num_worse=self.num_worse + 1)

    def is_exhausted(self, patience: int | None) -> bool:
        """Return True if `patience` epochs have passed without an improvement."""
        return patience is not None and self.num_worse >= patience

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Best:
        return cls(saved["value"], saved["epoch"], saved["num_worse"])
