"""Which epoch was the best, and whether to go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Best:
    """The best validation so far. Pure values: each epoch makes a new one."""

    value: float | None = None  # accuracy or loss, as is watched
    epoch: int | None = None
    num_worse: int = 0  # epochs since

    def after(self, epoch: int, value: float, *, higher_is_better: bool, min_delta: float = 0.0) -> Best:
        """The best once `epoch` brought `value`. A NaN never is."""
        gain = 0.0 if self.value is None else value - self.value if higher_is_better else self.value - value
        if value == value and (self.value is None or gain > min_delta):
            return Best(value, epoch)
        return dataclasses.replace(self, num_worse=self.num_worse + 1)

    def is_exhausted(self, patience: int | None) -> bool:
        """Whether `patience` epochs have gone by without a better one."""
        return patience is not None and self.num_worse >= patience

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Best:
        return cls(saved["value"], saved["epoch"], saved["num_worse"])
