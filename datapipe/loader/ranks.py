"""Which rank this process is: argument, then torch.distributed, then the environment, then alone; and what ranks agree on."""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed

from datapipe.core.checks import whole_number
from datapipe.core.errors import LifecycleError, OptionError
from datapipe.order.plan import Rank

_LONGEST_PAUSE_S = 0.25  # between looks for what rank 0 says: a thousand ranks ask its store at once


def resolve_rank(rank: int | None, world_size: int | None) -> Rank:
    """The rank in force now. Raises OptionError for half a pair or one that does not parse."""
    if (rank is None) != (world_size is None):
        raise OptionError(f"rank={rank}, world_size={world_size}: pass both or neither")
    if rank is not None and world_size is not None:
        return Rank(whole_number(rank, "rank"), whole_number(world_size, "world_size"))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Rank(torch.distributed.get_rank(), torch.distributed.get_world_size())
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        texts = os.environ["RANK"], os.environ["WORLD_SIZE"]
        if not all(text.isdigit() for text in texts):
            raise OptionError(f"RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r} in the environment are not numbers")
        return Rank(int(texts[0]), int(texts[1]))
    return Rank()


def is_of_group(rank: Rank) -> bool:
    """Whether these are the ranks of torch.distributed's default process group, which can agree on something."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    if (rank.rank, rank.world_size) != (torch.distributed.get_rank(), torch.distributed.get_world_size()):
        return False
    return _store_of_group() is not None


def agree_over_group(own: int, rank: Rank, what: str) -> int:
    """Return what rank 0 of the process group passed as `own` in its n-th call about `what`, where this is this rank's n-th.

    It goes through the group's key-value store rather than by a collective: rank 0 need not wait for anybody, so a batch that
    it alone looks at neither hangs nor comes between the collectives of the training, and no device is touched. Raises
    LifecycleError where rank 0 makes no such call within the group's timeout.
    """
    store = _store_of_group()
    assert store is not None  # the caller asked `is_of_group`
    done = f"datapipe/{what}/agreed by {rank.rank}"
    key = f"datapipe/{what}/{store.add(done, 0)}"  # counted when it is done: Ctrl-C may come in between
    if rank.rank == 0:
        store.set(key, str(own))
    else:
        _wait_for(key, store, rank)
    store.add(done, 1)
    return int(store.get(key))


def _wait_for(key: str, store: Any, rank: Rank) -> None:
    timeout_s = store.timeout.total_seconds()
    deadline, pause = time.monotonic() + timeout_s, 0.001
    while not store.check([key]):
        if time.monotonic() > deadline:
            raise LifecycleError(
                f"rank {rank.rank} of {rank.world_size} takes the seed that rank 0 draws, and rank 0 has begun no pass over this "
                f"dataset within {timeout_s:g} s, the process group's timeout; begin passes on all ranks, or pass seed="
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _store_of_group() -> Any:
    """The store through which the group's ranks found each other; None for a backend that has none, as MPI."""
    return torch.distributed.distributed_c10d._get_default_store()
