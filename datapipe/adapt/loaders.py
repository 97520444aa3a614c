"""Take torch's loaders apart, and those of other libraries that are known to add nothing: their order, and their arguments."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import torch.utils.data
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from datapipe.errors import OptionError
from datapipe.kernel.prefetching import PrefetchedLoader
from datapipe.kernel.seeding import SeedSource

TorchDataLoader = torch.utils.data.DataLoader[Any]
Collation = Literal["torch", "transformers"]

_DECIDES = ("__iter__", "__len__", "_get_iterator", "_index_sampler", "_auto_collation")  # decide which batches come
_NAMES_OF_OTHERS = ("pipeline", "length", "repetitions", "nsamples", "iterator")  # that webdataset and timm set on theirs
_MISSING = object()
_REPEATS = "timm.data.loader.MultiEpochsDataLoader"
_COLLATORS = "transformers.data.data_collator"
_TAKEN_OVER = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device",
)  # fmt: skip


def unwrap_torch_loader(loader: Any) -> TorchDataLoader:
    """Return the torch loader that `loader` is or wraps.

    Raises OptionError, with the remedy, for any other object, and for a subclass that itself decides its batches.
    """
    kind = type(loader)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if inside_of_stages(loader) is not None:
        raise OptionError(
            "from_torch: a webdataset.WebLoader with stages or epochs of its own, which run after its batches; pass "
            "torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=...), with shuffle() and batched() in the dataset"
        )
    if _is_webloader(loader):
        return unwrap_torch_loader(loader.pipeline[0])
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise OptionError(
            f"from_torch takes a torch.utils.data.DataLoader, got a {name}; "
            "for a dataset: datapipe.DataLoader(dataset, ...), for other loaders: datapipe.prefetch(loader)"
        )
    if name == _REPEATS:
        return _without_repeats(loader)
    own = [what for what in _DECIDES if getattr(kind, what) is not getattr(torch.utils.data.DataLoader, what)]
    if own:
        raise OptionError(
            f"from_torch: {name} has a {own[0]} of its own, which datapipe would ignore; leave it unchanged by "
            f"datapipe.prefetch(loader), or take over what it is made of: {_as_plain_loader(loader)}"
        )
    return loader


def _as_plain_loader(loader: TorchDataLoader) -> str:
    """Return the line that takes over torch's own loader with the arguments of one of another class."""
    order = f"batch_size={loader.batch_size}, sampler=loader.sampler, drop_last={loader.drop_last}"
    if isinstance(loader.dataset, IterableDataset):
        order = f"batch_size={loader.batch_size}, drop_last={loader.drop_last}"
    elif loader.batch_size is None:
        order = (
            "batch_size=None, sampler=loader.sampler" if loader.batch_sampler is None else "batch_sampler=loader.batch_sampler"
        )
    rest = f"num_workers={loader.num_workers}, collate_fn=loader.collate_fn"
    return f"datapipe.from_torch(torch.utils.data.DataLoader(loader.dataset, {order}, {rest}))"


def arguments_kept(loader: TorchDataLoader) -> dict[str, Any]:
    """Return the arguments of a loader, except the data, the order, and `in_order`: a saved place needs batches in order."""
    return {name: getattr(loader, name) for name in _TAKEN_OVER if hasattr(loader, name)}


def rebuilt_loader(
    loader: TorchDataLoader, *, dataset: Any, batch_sampler: Any, changes: Mapping[str, Any] | None = None
) -> TorchDataLoader:
    """Return a loader with the same arguments over this dataset, but for `changes`. Silences warnings that torch gave before."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return torch.utils.data.DataLoader(dataset, batch_sampler=batch_sampler, **{**arguments_kept(loader), **(changes or {})})


def has_collate_fn(loader: TorchDataLoader) -> bool:
    """Return whether a function of the user's collates batches."""
    torchs = torch.utils.data.default_convert if loader.batch_size is None and loader.batch_sampler is None else None
    return loader.collate_fn is not (torchs or torch.utils.data.default_collate)


def collation_of(loader: TorchDataLoader) -> Collation | None:
    """Return whose function collates batches: torch's, or the one of transformers for samples of equal shape; None: another's."""
    if not has_collate_fn(loader):
        return "torch"
    given: Any = loader.collate_fn
    default = collate_of_transformers()
    if default is None:
        return None
    is_object = type(given) is getattr(sys.modules[_COLLATORS], "DefaultDataCollator", None) and given.return_tensors == "pt"
    return "transformers" if given is default or is_object else None


def collate_of_transformers() -> Callable[[list[Any]], Any] | None:
    """Return the function with which transformers stacks samples of equal shape; None if it is not imported."""
    return getattr(sys.modules.get(_COLLATORS), "default_data_collator", None)


def _is_webloader(loader: object) -> bool:
    return any(kind.__module__.startswith("webdataset.") and kind.__name__ == "WebLoader" for kind in type(loader).__mro__)


def inside_of_stages(loader: Any) -> TorchDataLoader | None:
    """Return the torch loader inside a webdataset.WebLoader whose batches go through further stages; None for other loaders."""
    if not _is_webloader(loader) or (len(loader.pipeline) == 1 and loader.repetitions == 1 and loader.nsamples == -1):
        return None
    return unwrap_torch_loader(loader.pipeline[0])


def _without_repeats(loader: TorchDataLoader) -> TorchDataLoader:
    """Return timm's loader that keeps its workers by an endless sampler as a torch loader with the sampler inside."""
    kept = {**arguments_kept(loader), "persistent_workers": loader.num_workers > 0}
    if loader.batch_sampler is None:
        sampler = None if isinstance(loader.dataset, IterableDataset) else loader.sampler.sampler  # type: ignore[attr-defined]
        return torch.utils.data.DataLoader(loader.dataset, batch_size=None, sampler=sampler, **kept)
    batches = loader.batch_sampler.sampler  # type: ignore[attr-defined]
    if type(batches) is not BatchSampler:
        return torch.utils.data.DataLoader(loader.dataset, batch_sampler=batches, **kept)
    return torch.utils.data.DataLoader(
        loader.dataset, batches.batch_size, sampler=batches.sampler, drop_last=batches.drop_last, **kept
    )


# -- what a script sets on its loader -------------------------------------------------------------------


def carry_attributes(theirs: Any, ours: Any) -> None:
    """Set on `ours` what a script, or a subclass, has set on its own loader, unless it is there already.

    Warns of attributes whose names are datapipe's own: these stay as they are.
    """
    inner = [ours._inner] if isinstance(ours, PrefetchedLoader) and ours._inner is not theirs else []
    taken, clashing = {}, []
    for name, value in vars(theirs).items():
        if name in _names_of_torch() or name in _NAMES_OF_OTHERS:
            continue
        if any(hasattr(type(part), name) or name in vars(part) for part in (ours, *inner)):
            clashing.append(name)
        elif getattr(ours, name, _MISSING) is not value:
            taken[name] = value
    vars(ours).update(taken)
    if clashing:
        warnings.warn(
            f"from_torch: the attributes {', '.join(map(repr, clashing))} that the script set on its loader are not carried "
            f"over, as datapipe's {type(ours).__qualname__} has one of that name; rename them",
            stacklevel=3,
        )


@functools.cache
def _names_of_torch() -> frozenset[str]:
    """Return the attributes that torch sets on each loader."""
    return frozenset(vars(torch.utils.data.DataLoader([0])))  # type: ignore[arg-type]


# -- the order -----------------------------------------------------------------------------------------


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


def is_in_order(loader: TorchDataLoader) -> bool:
    """Return whether each sample of the dataset comes once, in its order."""
    sampler = sampler_of(loader)
    return type(sampler) is SequentialSampler and len(sampler.data_source) == length_of(loader.dataset)


def batch_size_of(loader: TorchDataLoader) -> int | None:
    """Return the size of batches: the loader's, or that of a batch sampler of the user's which has one."""
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None


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


# -- arguments -----------------------------------------------------------------------------------------


def arguments_of(loader: TorchDataLoader, seed: SeedSource, *, shares: bool = False) -> dict[str, Any]:
    """Return torch's arguments as those of `datapipe.DataLoader`.

    `shares`: ranks share the samples even without a DistributedSampler. Raises OptionError if a sampler of the user's
    decides instead.
    """
    arguments = {**common_arguments(loader, seed), **({} if shares else {"ranks": (0, 1)})}
    if loader.prefetch_factor not in (None, 2):  # 2 is torch's default
        arguments["prefetch_factor"] = loader.prefetch_factor * max(1, loader.num_workers)
    batches = loader.batch_sampler
    is_plain = is_plain_shuffle(loader) or is_in_order(loader)
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
        arguments |= {"ranks": (sampler.rank, sampler.num_replicas)}
    return {**arguments, "sampler": sampler}


def common_arguments(loader: TorchDataLoader, seed: SeedSource) -> dict[str, Any]:
    """Return those of torch's arguments that do not depend on who decides the order."""
    return {
        "num_workers": loader.num_workers or None,
        "collate_fn": loader.collate_fn if has_collate_fn(loader) else None,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        **({"generator": seed} if isinstance(seed, torch.Generator) else {"seed": seed}),
    }
