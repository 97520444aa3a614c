"""Scales and round ticks for charts. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps [low, high] to whole numbers from 0 to `size`; what lies outside goes to the nearest end."""

    low: float
    high: float
    size: int

    def at(self, value: float) -> int:
        if self.high <= self.low:
            return 0
        return round(self.size * min(1.0, max(0.0, (value - self.low) / (self.high - self.low))))

    def share(self, value: float) -> float:
        """Of the way from low to high."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0


def ticks(low: float, high: float, *, num: int) -> list[float]:
    """Round values from low to high, `num` of them or a few less: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / num
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed; there is at least one."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
