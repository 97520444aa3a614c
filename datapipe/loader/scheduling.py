"""How many batches are in the making at once: what the options of images and of tables have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from datapipe.core.errors import OptionError

OnError = Literal["raise", "skip", "replace"]


class Scheduling(Protocol):
    """The options by which batches are made ahead of the consumer."""

    @property
    def batch_size(self) -> int: ...
    @property
    def num_workers(self) -> int: ...
    @property
    def prefetch_factor(self) -> int: ...
    @property
    def on_error(self) -> OnError: ...
    @property
    def timeout_s(self) -> float: ...

    def block_size_of(self, num_samples: int, /) -> int:
        """Return the samples per unit of work in a batch of `num_samples`."""


def require(holds: bool, message: str) -> None:
    """Raise OptionError with that message unless the condition holds."""
    if not holds:
        raise OptionError(message)


def check_scheduling(options: Scheduling) -> None:
    """Raise OptionError for numbers and policies that make no sense."""
    require(options.batch_size >= 1, f"batch_size is {options.batch_size}; it must be at least 1")
    require(options.num_workers >= 0, f"num_workers is {options.num_workers}; it must be 0 or more")
    require(options.prefetch_factor >= 1, f"prefetch_factor is {options.prefetch_factor}; it must be at least 1")
    require(options.timeout_s >= 0, f"timeout is {options.timeout_s}; it must be 0 or more seconds")
    require(options.on_error in ("raise", "skip", "replace"), f"on_error is {options.on_error!r}; choose raise, skip or replace")


def is_enough(options: Scheduling, batches: Iterable[int]) -> bool:
    """Return whether batches of these sizes are enough in the making.

    Enough is `prefetch_factor` batches, or more if they are too small to keep all threads busy.
    """
    sizes = list(batches)
    if not options.num_workers:
        return len(sizes) >= 1
    num_blocks = sum(max(1, -(-size // options.block_size_of(size))) for size in sizes)
    return len(sizes) >= options.prefetch_factor and num_blocks >= 2 * options.num_workers


def depth_of(options: Scheduling) -> int:
    """Return the number of batches of `batch_size` that are in the making at once."""
    if not options.num_workers:
        return 1
    blocks_per_batch = -(-options.batch_size // options.block_size_of(options.batch_size))
    return max(options.prefetch_factor, -(-2 * options.num_workers // blocks_per_batch))
