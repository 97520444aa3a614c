"""What torch's arguments are in ours: who decides about the order, in what batches, on which rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.data
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from datapipe.datasets import SeenStream
from datapipe.errors import OptionError


def arguments_of(loader: torch.utils.data.DataLoader[Any], seed: int, *, shares: bool = False) -> dict[str, Any]:
    """What torch's arguments are in ours.

    `shares`: ranks share the samples also where no DistributedSampler says so. Raises OptionError where a sampler of the user's
    decides instead.
    """
    collates = loader.collate_fn is not torch.utils.data.default_collate
    arguments: dict[str, Any] = {
        "num_workers": loader.num_workers or None,
        "collate_fn": loader.collate_fn if collates else None,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "seed": seed,
        **({} if shares else {"rank": 0, "world_size": 1}),
    }
    if loader.prefetch_factor not in (None, 2):  # 2 is what torch takes where nothing is asked for
        arguments["prefetch_factor"] = loader.prefetch_factor * max(1, loader.num_workers)
    batches = loader.batch_sampler
    decides = sampler_of(loader)
    if shares and not (is_plain_shuffle(decides) or type(decides) is SequentialSampler):
        raise OptionError(
            f"share_among_ranks=True: the order is decided by a {type(decides).__qualname__}, which decides for its rank; "
            "leave it out, or give the loader shuffle=True or nothing in its place"
        )
    if type(batches) is not BatchSampler:
        return {**arguments, "batch_sampler": batches}
    sampler = batches.sampler
    arguments |= {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    if is_plain_shuffle(sampler) or type(sampler) is SequentialSampler:
        return {**arguments, "shuffle": type(sampler) is RandomSampler}
    if isinstance(sampler, DistributedSampler):
        arguments |= {"rank": sampler.rank, "world_size": sampler.num_replicas}
    return {**arguments, "sampler": sampler}


def sampler_of(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """What decides: the sampler behind torch's own batch sampler, or a batch sampler of the user's."""
    batches = loader.batch_sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def stream_arguments(loader: torch.utils.data.DataLoader[Any], stream: SeenStream, seed: int) -> dict[str, Any]:
    """What the arguments of a stream and its loader are in ours; a stream that every rank takes whole has no ranks."""
    collates = loader.collate_fn not in (torch.utils.data.default_collate, torch.utils.data.default_convert)
    return {
        "fields": stream.fields,
        "batch_size": loader.batch_size or stream.batch_size,
        "shuffle": stream.shuffles,
        "drop_last": stream.drop_last or loader.drop_last,
        "num_workers": loader.num_workers or None,
        "collate_fn": loader.collate_fn if collates else None,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "seed": seed,
        **({} if stream.splits_by_node else {"rank": 0, "world_size": 1}),
    }


def is_plain_shuffle(sampler: Any) -> bool:
    """Each sample once, in any order."""
    return type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)


def seed_of(loader: torch.utils.data.DataLoader[Any]) -> int:
    generator = loader.generator or getattr(sampler_of(loader), "generator", None)
    return generator.initial_seed() if isinstance(generator, torch.Generator) else 0
