"""Which rank this process is: argument, then torch.distributed, then the environment, then alone."""

from __future__ import annotations

import os

import torch.distributed

from datapipe.checks import whole_number
from datapipe.errors import OptionError
from datapipe.plan import Rank


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
