"""A loader of numbers."""

from __future__ import annotations

from typing import Any

from datapipe.kernel.loader import Loader
from datapipe.kernel.options import parse_options
from datapipe.kernel.ranks import resolve_device
from datapipe.kernel.seeding import Seed, seed_source
from kind_numbers.inspection import claim
from kind_numbers.kind import NumbersKind

_OTHERS: dict[str, Any] = {
    **dict.fromkeys(("num_workers", "prefetch_factor", "tail", "seed", "generator", "worker_init_fn", "batch_transform")),
    **dict.fromkeys(("rank", "world_size")),
    "drop_last": False,
    "on_error": "raise",
    "pin_memory": False,
    "timeout": 0,
    "device": "cpu",
}


class NumberLoader(Loader):
    """Give batches of the numbers in a directory, (b,) int64; with tail="mask" also which are no repeats, (b,) bool.

    Other arguments are as for `datapipe.DataLoader`.
    """

    def __init__(self, path: str, batch_size: int = 1, shuffle: bool = False, **others: Any) -> None:
        arguments = {"path": path, "batch_size": batch_size, "shuffle": shuffle, **_OTHERS, **others}
        index = claim(path)
        assert index is not None
        super().__init__(
            NumbersKind(index),
            arguments,
            parse_options(arguments),
            remake=NumberLoader,
            parse=parse_options,
            seed=Seed(seed_source(arguments["seed"], arguments["generator"])),
            device=resolve_device(arguments["device"]),
        )
