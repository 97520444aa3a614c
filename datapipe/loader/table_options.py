"""The arguments of a `TableLoader`, checked once and frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from datapipe.core.errors import OptionError
from datapipe.loader.options import OnError
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
        _require(self.batch_size >= 1, f"batch_size is {self.batch_size}; it must be at least 1")
        _require(self.num_workers >= 0, f"num_workers is {self.num_workers}; it must be 0 or more")
        _require(self.prefetch_factor >= 1, f"prefetch_factor is {self.prefetch_factor}; it must be at least 1")
        _require(self.timeout_s >= 0, f"timeout is {self.timeout_s}; it must be 0 or more seconds")
        _require(self.on_error in ("raise", "skip", "replace"), f"on_error is {self.on_error!r}; choose raise, skip or replace")
        _require(self.window_nbytes >= 1, f"window_nbytes is {self.window_nbytes}; it must be at least 1")

    def block_size_of(self, num_rows: int) -> int:
        """Return the rows per unit of work in a batch of `num_rows`."""
        return max(_MIN_BLOCK, -(-num_rows // max(1, self.num_workers)))

    def is_ahead(self, batches: Iterable[int]) -> bool:
        """Return whether enough is in the making: `prefetch_factor` batches, or more if those do not keep all threads busy."""
        sizes = list(batches)
        if not self.num_workers:
            return len(sizes) >= 1
        num_blocks = sum(max(1, -(-size // self.block_size_of(size))) for size in sizes)
        return len(sizes) >= self.prefetch_factor and num_blocks >= 2 * self.num_workers

    @property
    def depth(self) -> int:
        """Batches of `batch_size` in the making at once."""
        if not self.num_workers:
            return 1
        blocks_per_batch = -(-self.batch_size // self.block_size_of(self.batch_size))
        return max(self.prefetch_factor, -(-2 * self.num_workers // blocks_per_batch))


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise OptionError(message)
