"""Recognise datapipe's loaders, and read or set their place in an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeGuard

import torch

from datapipe.core.errors import OptionError


class OurLoader(Protocol):
    """The attributes of our loaders, and of the results of `from_torch` and `prefetch`, that hosts use."""

    @property
    def batch_size(self) -> int | None: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def sampler(self) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int, /) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None: ...


def is_ours(value: object) -> TypeGuard[OurLoader]:
    """Return whether `value` is a datapipe loader whose place can be saved."""
    return type(value).__module__.startswith("datapipe.") and hasattr(value, "state_dict") and hasattr(value, "set_epoch")


def steps_done(loader: OurLoader) -> int:
    """Return the steps of its epoch that a loader has delivered."""
    state = loader.state_dict()
    return -(-int(state["samples_done"]) // int(state["global_batch"]))


def go_to(loader: OurLoader, *, epoch: int, step: int) -> None:
    """Continue with the next pass after so many steps of that epoch."""
    state = loader.state_dict()
    loader.load_state_dict({**state, "epoch": epoch, "samples_done": step * int(state["global_batch"])})


def check_ranks(loader: OurLoader, num_processes: int) -> None:
    """Raise OptionError for a loader whose ranks are not those of the processes: each would take samples of the others."""
    found = int(loader.state_dict()["global_batch"])
    batch_size = loader.batch_size or 1
    if found != batch_size * num_processes:
        raise OptionError(
            f"the loader's step covers {found} samples over all ranks, but batch_size x processes is {batch_size} x "
            f"{num_processes}: ranks would share samples. Make it without rank= and world_size= and after the process group is "
            "initialized; from_torch: pass share_among_ranks=True"
        )
