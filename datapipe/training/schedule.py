"""The learning rate: a function of the step, not a state. Linear warm-up, then half a cosine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from datapipe.errors import OptionError


@dataclass(frozen=True, slots=True)
class Schedule:
    """The share of the top learning rate at each of `num_steps` steps.

    Step k of the warm-up has (k + 1) / warmup_steps; after that the share falls from 1 as 1 + cos (Loshchilov and Hutter,
    "SGDR", 2017), and would reach `final` with the step after the last.
    """

    num_steps: int
    warmup_steps: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_steps <= self.num_steps:
            raise OptionError(f"warmup_steps is {self.warmup_steps}; it must lie between 0 and num_steps = {self.num_steps}")

    @classmethod
    def of(cls, num_steps: int, *, warmup: float, final: float) -> Schedule:
        """`warmup` as a share of the steps."""
        return cls(num_steps, round(warmup * num_steps), final)

    def __call__(self, step: int) -> float:
        """Steps count from 0; beyond the last the share stays `final`."""
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
