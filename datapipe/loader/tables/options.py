"""The arguments of a `TableLoader`, checked once and frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from datapipe.loader.scheduling import OnError, check_scheduling, depth_of, is_enough, require
from datapipe.order.plan import Tail

WINDOW_NBYTES = 1 << 30
_MIN_BLOCK = 4096  # rows gathered at once, if a batch has so many


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How batches of rows are sized, scheduled and delivered."""

    batch_size: int
    shuffle: bool
    tail: Tail
    num_workers: int  # threads; 0: the caller's
    prefetch_factor: int  # batches in the making beyond the one that is waited for
    on_error: OnError
    pin_memory: bool
    timeout_s: float  # 0: wait for ever
    window_nbytes: int  # rows that are shuffled with each other, and read ahead
    batch_transform: Callable[..., Any] | None

    def __post_init__(self) -> None:
        check_scheduling(self)
        require(self.window_nbytes >= 1, f"window_nbytes is {self.window_nbytes}; it must be at least 1")

    def block_size_of(self, num_rows: int, /) -> int:
        """Return the rows per unit of work in a batch of `num_rows`."""
        return max(_MIN_BLOCK, -(-num_rows // max(1, self.num_workers)))

    def is_ahead(self, batches: Iterable[int]) -> bool:
        """Return whether enough is in the making: `prefetch_factor` batches, or more if those do not keep all threads busy."""
        return is_enough(self, batches)

    @property
    def depth(self) -> int:
        """Batches of `batch_size` in the making at once."""
        return depth_of(self)
