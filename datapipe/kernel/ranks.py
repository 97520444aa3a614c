"""Find this process's rank: argument, then torch.distributed, then the environment, then alone. Find its GPU; let ranks agree."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from datapipe.core.checks import whole_number
from datapipe.core.environment import positive_environment
from datapipe.core.waiting import Wait
from datapipe.errors import LifecycleError, OptionError
from datapipe.kernel.accelerators import accelerator, checked_device, current_device, devices
from datapipe.order.plan import Rank

_LONGEST_PAUSE_S = 0.25  # between queries for rank 0's value: a thousand ranks query its store at once


def resolve_rank(ranks: tuple[int, int] | None = None) -> Rank:
    """Return the rank in force now. `ranks`: the rank and the number of ranks, if given. Raises OptionError for no such pair."""
    if ranks is not None:
        if not isinstance(ranks, (tuple, list)) or len(ranks) != 2:
            raise OptionError(f"ranks is {ranks!r:.60}; pass (rank, world_size), such as (0, 8)")
        return Rank(whole_number(ranks[0], "ranks[0]"), whole_number(ranks[1], "ranks[1]"))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Rank(torch.distributed.get_rank(), torch.distributed.get_world_size())
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        texts = os.environ["RANK"], os.environ["WORLD_SIZE"]
        if not all(text.isdigit() for text in texts):
            raise OptionError(f"RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r} in the environment are not numbers")
        return Rank(int(texts[0]), int(texts[1]))
    return Rank()


def is_of_group(rank: Rank) -> bool:
    """Return whether these are the ranks of torch.distributed's default process group, which can agree on a value."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    if (rank.rank, rank.world_size) != (torch.distributed.get_rank(), torch.distributed.get_world_size()):
        return False
    return _store_of_group() is not None


def agree_over_group(own: int, rank: Rank, what: str) -> int:
    """Return the value that rank 0 of the process group passed as `own` in its n-th call about `what`, this being the n-th here.

    It goes through the group's key-value store rather than a collective: rank 0 waits for nobody, so a batch that only
    rank 0 reads neither hangs nor mixes with the collectives of the training, and no device is touched. Raises
    LifecycleError if rank 0 makes no such call within the group's timeout.
    """
    store = _store_of_group()
    assert store is not None  # the caller asked `is_of_group`
    done = f"datapipe/{what}/agreed by {rank.rank}"
    key = f"datapipe/{what}/{store.add(done, 0)}"  # counted once it is done: Ctrl-C may come in between
    if rank.rank == 0:
        store.set(key, str(own))
    else:
        _wait_for(key, store, rank)
    store.add(done, 1)
    return int(store.get(key))


def _wait_for(key: str, store: Any, rank: Rank) -> None:
    timeout_s = store.timeout.total_seconds()
    deadline, pause = time.monotonic() + timeout_s, 0.001
    wait = Wait("the seed of rank 0", f"rank {rank.rank} begins a pass, and rank 0 has not")
    while not store.check([key]):
        if time.monotonic() > deadline:
            raise LifecycleError(
                f"rank {rank.rank} of {rank.world_size} uses the seed that rank 0 draws, but rank 0 has begun no pass over this "
                f"dataset within {timeout_s:g} s, the process group's timeout; begin passes on all ranks, or pass seed="
            )
        wait.report_if_long()
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _store_of_group() -> Any:
    """Return the store through which the group's ranks found each other; None for a backend without one, such as MPI."""
    return torch.distributed.distributed_c10d._get_default_store()


def resolve_device(device: str | torch.device) -> Callable[[], torch.device]:
    """Return a function that, called in the consumer's thread, says on which device batches are delivered.

    "auto" is this rank's GPU, or other accelerator, if there is one, else the CPU; "cuda" the current CUDA device, and so for
    accelerators of other types. An accelerator always comes with its index. Raises OptionError for a device that does not exist.
    """
    if isinstance(device, str) and device == "auto":
        return _rank_device
    checked = checked_device(device)
    if checked.type != "cpu" and checked == torch.device(checked.type):  # without an index
        return current_device
    return lambda: checked


def _rank_device() -> torch.device:
    """Return the accelerator's current device; if a script under torchrun has not set one, that of its local rank."""
    if accelerator() is None:
        return torch.device("cpu")
    current, local_rank = current_device(), positive_environment("LOCAL_RANK", 0)
    return torch.device(current.type, local_rank) if current.index == 0 and local_rank < len(devices()) else current
