"""The loader's arguments, checked once and frozen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from datapipe.core.errors import OptionError
from datapipe.loader.columns import BoxesForm
from datapipe.order.plan import Tail

MAX_BLOCK = 64  # samples that are read, and whose geometry is drawn, at once: they share the overhead

OnError = Literal["raise", "skip", "replace"]
Output = Literal["tuple", "dict"]
Shuffle = Literal[False, True, "windows"]


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """How batches are sized, scheduled and delivered; nothing about what a sample is."""

    batch_size: int
    shuffle: Shuffle
    tail: Tail
    num_workers: int  # decode threads; 0: the caller's
    prefetch_factor: int  # batches in the making beyond the one that is waited for
    on_error: OnError
    output: Output
    rename: Mapping[str, str]
    boxes: BoxesForm
    pin_memory: bool
    timeout_s: float  # 0: wait for ever
    collate_fn: Callable[[list[Any]], Any] | None
    batch_transform: Callable[..., Any] | None

    def __post_init__(self) -> None:
        _require(self.batch_size >= 1, f"batch_size is {self.batch_size}; it must be at least 1")
        _require(self.num_workers >= 0, f"num_workers is {self.num_workers}; it must be 0 or more")
        _require(self.prefetch_factor >= 1, f"prefetch_factor is {self.prefetch_factor}; it must be at least 1")
        _require(self.timeout_s >= 0, f"timeout is {self.timeout_s}; it must be 0 or more seconds")
        _require(self.on_error in ("raise", "skip", "replace"), f"on_error is {self.on_error!r}; choose raise, skip or replace")
        _require(self.output in ("tuple", "dict"), f"output is {self.output!r}; choose tuple or dict")
        _require(not self.rename or self.output == "dict", "rename needs output='dict'")
        _require(self.boxes in ("list", "padded"), f"boxes is {self.boxes!r}; choose list or padded")

    def block_size_of(self, num_samples: int) -> int:
        """Return the samples per unit of work: at most MAX_BLOCK, with equally many units for every thread."""
        num_threads = max(1, self.num_workers)
        units_each = -(-num_samples // (MAX_BLOCK * num_threads))
        return max(1, -(-num_samples // (max(1, units_each) * num_threads)))

    def is_ahead(self, batches: Iterable[int]) -> bool:
        """Return whether enough batches are in the making, given the number of samples of each.

        Enough is `prefetch_factor` batches, or more if they are too small to keep all threads busy.
        """
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
