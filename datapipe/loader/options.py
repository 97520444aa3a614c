"""The loader's arguments, checked once and frozen; and which of them may be assigned to a loader later, as to torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from datapipe.core.errors import OptionError
from datapipe.loader.images.columns import BoxesForm
from datapipe.loader.scheduling import OnError, check_scheduling, depth_of, is_enough, require
from datapipe.order.plan import Tail

MAX_BLOCK = 64  # samples that are read, and whose geometry is drawn, at once: they share the overhead

Output = Literal["tuple", "dict"]
Shuffle = Literal[False, True, "windows"]
# torch raises ValueError when these are assigned.
FIXED = frozenset(("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"))
# These take effect with the next pass, as torch reads them again. The last three mean nothing to a datapipe.DataLoader.
SETTABLE = frozenset((
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor",
    "multiprocessing_context", "pin_memory_device", "in_order",
))  # fmt: skip


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
        check_scheduling(self)
        require(self.output in ("tuple", "dict"), f"output is {self.output!r}; choose tuple or dict")
        require(not self.rename or self.output == "dict", "rename needs output='dict'")
        require(self.boxes in ("list", "padded"), f"boxes is {self.boxes!r}; choose list or padded")

    def block_size_of(self, num_samples: int, /) -> int:
        """Return the samples per unit of work: at most MAX_BLOCK, with equally many units for every thread."""
        num_threads = max(1, self.num_workers)
        units_each = -(-num_samples // (MAX_BLOCK * num_threads))
        return max(1, -(-num_samples // (max(1, units_each) * num_threads)))

    def is_ahead(self, batches: Iterable[int]) -> bool:
        """Return whether enough batches are in the making, given the number of samples of each.

        Enough is `prefetch_factor` batches, or more if they are too small to keep all threads busy.
        """
        return is_enough(self, batches)

    @property
    def depth(self) -> int:
        """Batches of `batch_size` in the making at once."""
        return depth_of(self)


def check_settable(name: str) -> None:
    """Raise OptionError for an argument that a loader does not read again."""
    if name not in SETTABLE:
        raise OptionError(
            f"{name} cannot be set on a loader that exists, as its batches would not change; make another loader with {name}="
        )
