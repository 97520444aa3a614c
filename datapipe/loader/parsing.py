"""Check a loader's arguments, as users pass them, and make options of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from datapipe.core.checks import callable_or_none, iterable_or_none, real_number, whole_number
from datapipe.core.environment import num_usable_cores, positive_environment
from datapipe.core.errors import OptionError
from datapipe.loader.images.mixing import WeightedSampler
from datapipe.loader.options import LoaderOptions, Shuffle
from datapipe.order.plan import Tail


def parse_options(arguments: Mapping[str, Any]) -> LoaderOptions:
    """Return the options of `DataLoader`'s arguments. Raises OptionError for arguments that make no sense, alone or together."""
    _check_sampling(arguments)
    if arguments["memory_format"] not in (torch.channels_last, torch.contiguous_format):
        raise OptionError(
            f"memory_format is {arguments['memory_format']!r}; choose torch.channels_last or torch.contiguous_format"
        )
    callable_or_none(arguments["worker_init_fn"], "worker_init_fn")
    num_workers, prefetch_factor = arguments["num_workers"], arguments["prefetch_factor"]
    return LoaderOptions(
        batch_size=whole_number(arguments["batch_size"], "batch_size"),
        shuffle=_parse_shuffle(arguments["shuffle"]),
        tail=parse_tail(arguments["tail"], drop_last=arguments["drop_last"]),
        num_workers=default_num_workers() if num_workers is None else whole_number(num_workers, "num_workers"),
        prefetch_factor=2 if prefetch_factor is None else whole_number(prefetch_factor, "prefetch_factor"),
        on_error=arguments["on_error"],
        output=arguments["output"],
        rename=_parse_rename(arguments["rename"]),
        boxes=arguments["boxes"],
        pin_memory=arguments["pin_memory"],
        timeout_s=real_number(arguments["timeout"], "timeout"),
        collate_fn=callable_or_none(arguments["collate_fn"], "collate_fn"),
        batch_transform=callable_or_none(arguments["batch_transform"], "batch_transform"),
    )


def _check_sampling(arguments: Mapping[str, Any]) -> None:
    """Refuse the combinations that torch refuses, and those that would fill up or drop a sampler's own batches."""
    names = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "tail")
    batch_size, shuffle, sampler, batch_sampler, drop_last, tail = (arguments[name] for name in names)
    if batch_size is None:
        raise OptionError("batch_size=None (no batching) is not available; use loader.dataset for single samples")
    if sampler is not None and shuffle:
        raise OptionError("sampler and shuffle=True exclude each other: the sampler decides the order")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise OptionError("batch_sampler excludes batch_size, shuffle, sampler and drop_last: it decides them")
    if batch_sampler is not None and tail is not None:
        raise OptionError(f"batch_sampler excludes tail={tail!r}: it decides how the last samples are batched")
    iterable_or_none(batch_sampler, "batch_sampler")
    if isinstance(sampler, WeightedSampler):
        return
    if sampler is not None and tail == "mask":
        raise OptionError("sampler excludes tail='mask': its batches are not filled up; pass tail='pad' or 'drop'")
    iterable_or_none(sampler, "sampler")


def _parse_shuffle(shuffle: object) -> Shuffle:
    if isinstance(shuffle, str):
        if shuffle != "windows":
            raise OptionError(f"shuffle is {shuffle!r}; pass True, False or 'windows'")
        return "windows"
    return bool(shuffle)


def _parse_rename(rename: object) -> dict[str, str]:
    if rename is not None and not isinstance(rename, Mapping):
        raise OptionError(f"rename is {rename!r:.60}; pass a dict such as {{'image': 'pixel_values'}}")
    return dict(rename or {})


def default_num_workers() -> int:
    """Return the number of threads for this process: the cores it may use, shared with the other ranks of its node."""
    return max(1, num_usable_cores() // positive_environment("LOCAL_WORLD_SIZE", 1))


def parse_tail(tail: str | None, *, drop_last: bool) -> Tail:
    """Return the tail. `drop_last=True` is torch's name for tail="drop"; the two must not disagree."""
    if tail is None:
        return Tail.DROP if drop_last else Tail.PAD
    try:
        parsed = Tail(tail)
    except ValueError as exc:
        raise OptionError(f"tail is {tail!r}; choose one of: {', '.join(member.value for member in Tail)}") from exc
    if drop_last and parsed is not Tail.DROP:
        raise OptionError(f"drop_last=True contradicts tail={tail!r}; pass one of them")
    return parsed
