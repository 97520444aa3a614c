"""Decide which attributes of a loader may be assigned after it is made: those that torch reads again when a pass begins."""

from __future__ import annotations

from datapipe.core.errors import OptionError

# torch raises ValueError for these.
FIXED = frozenset(("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"))
# These take effect with the next pass. The last three mean nothing to a datapipe.DataLoader, as when they are passed to it.
SETTABLE = frozenset((
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor",
    "multiprocessing_context", "pin_memory_device", "in_order",
))  # fmt: skip


def check_settable(name: str) -> None:
    """Raise OptionError for an argument that a loader does not read again."""
    if name not in SETTABLE:
        raise OptionError(
            f"{name} cannot be set on a loader that exists, as its batches would not change; make another loader with {name}="
        )
