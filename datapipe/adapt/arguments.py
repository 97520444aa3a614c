"""Translate a torch loader's arguments into datapipe's: who decides the order, the batches and the rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.data
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from datapipe.adapt.loaders import TorchDataLoader, has_collate_fn
from datapipe.core.errors import OptionError
from datapipe.datasets import SeenStream
from datapipe.loader.seeding import SeedSource


def arguments_of(loader: TorchDataLoader, seed: SeedSource, *, shares: bool = False) -> dict[str, Any]:
    """Return torch's arguments as those of `datapipe.DataLoader`.

    `shares`: ranks share the samples even without a DistributedSampler. Raises OptionError if a sampler of the user's
    decides instead.
    """
    arguments = {**_common(loader, seed), **({} if shares else {"rank": 0, "world_size": 1})}
    if loader.prefetch_factor not in (None, 2):  # 2 is torch's default
        arguments["prefetch_factor"] = loader.prefetch_factor * max(1, loader.num_workers)
    batches = loader.batch_sampler
    is_plain = is_plain_shuffle(loader) or _is_in_order(loader)
    if shares and not is_plain:
        raise OptionError(
            f"share_among_ranks=True: a {type(sampler_of(loader)).__qualname__} decides the order, for its rank alone; "
            "leave it out, or give the loader shuffle=True or no sampler instead"
        )
    if type(batches) is not BatchSampler:
        return {**arguments, "batch_sampler": batches}
    sampler = batches.sampler
    arguments |= {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    if is_plain:
        return {**arguments, "shuffle": type(sampler) is RandomSampler}
    if isinstance(sampler, DistributedSampler):
        arguments |= {"rank": sampler.rank, "world_size": sampler.num_replicas}
    return {**arguments, "sampler": sampler}


def stream_arguments(loader: TorchDataLoader, stream: SeenStream, seed: SeedSource, *, shares: bool = False) -> dict[str, Any]:
    """Return the arguments of a stream and its loader as datapipe's; a stream that every rank reads whole has no ranks."""
    return {
        **_common(loader, seed),
        "fields": stream.fields,
        "batch_size": loader.batch_size or stream.batch_size,
        "shuffle": stream.shuffles,
        "drop_last": stream.drop_last or loader.drop_last,
        **({} if stream.splits_by_node or shares else {"rank": 0, "world_size": 1}),
    }


def _common(loader: TorchDataLoader, seed: SeedSource) -> dict[str, Any]:
    return {
        "num_workers": loader.num_workers or None,
        "collate_fn": loader.collate_fn if has_collate_fn(loader) else None,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        **({"generator": seed} if isinstance(seed, torch.Generator) else {"seed": seed}),
    }


def sampler_of(loader: TorchDataLoader) -> Any:
    """Return what decides the order: the sampler inside torch's own batch sampler, or a batch sampler of the user's."""
    batches = loader.batch_sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def is_plain_shuffle(loader: TorchDataLoader) -> bool:
    """Return whether each sample of the dataset comes once, in random order."""
    sampler = sampler_of(loader)
    if type(sampler) is not RandomSampler or sampler.replacement:
        return False
    return sampler.num_samples == len(sampler.data_source) == length_of(loader.dataset)


def _is_in_order(loader: TorchDataLoader) -> bool:
    """Return whether each sample of the dataset comes once, in its order."""
    sampler = sampler_of(loader)
    return type(sampler) is SequentialSampler and len(sampler.data_source) == length_of(loader.dataset)


def length_of(dataset: Any) -> int | None:
    """Return the length of a dataset; None if it has none, which torch accepts with a sampler."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def generator_of(loader: TorchDataLoader) -> torch.Generator | None:
    """Return the generator from which the loader's seed is drawn. A sampler that is kept keeps its generator to itself."""
    generator: torch.Generator | None = loader.generator
    if generator is None and is_plain_shuffle(loader):
        generator = sampler_of(loader).generator
    return generator
