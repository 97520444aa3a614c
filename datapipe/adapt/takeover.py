"""`from_torch`: a torch DataLoader taken over."""

from __future__ import annotations

import functools
import hashlib
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import DistributedSampler, IterableDataset

from datapipe.adapt.arguments import arguments_of, generator_of, is_plain_shuffle, length_of, sampler_of
from datapipe.adapt.behind import Behind, as_torch_gives, behind
from datapipe.adapt.converted import converted_index
from datapipe.adapt.deferral.dataset import DeferringDataset, is_switched_off, reads_batches
from datapipe.adapt.deferral.taking import request_of_picks
from datapipe.adapt.explaining import lines_about
from datapipe.adapt.loaders import TorchsLoader, has_collate_fn, torchs_loader
from datapipe.adapt.sample_dataset import SampleDataset, keys_of
from datapipe.adapt.tensor_rows import picked_rows, tensor_rows
from datapipe.adapt.torch_loader import GivenKeys, KeyOf, KeySource, PickedKeys, TorchLoader, places_of
from datapipe.core.errors import OptionError
from datapipe.datasets import Original, Unseen
from datapipe.index.repeats import Repeats
from datapipe.loader import DataLoader, Dataset
from datapipe.loader.choice import Backend, resolve_device
from datapipe.loader.options import OnError
from datapipe.loader.prefetching import PrefetchedLoader, prefetch
from datapipe.loader.ranks import resolve_rank
from datapipe.loader.seeding import SeedSource, seed_source
from datapipe.loader.sources import SampledSource
from datapipe.loader.trail import Trail
from datapipe.order.plan import Plan, Tail
from datapipe.order.row_order import ShuffledRows
from datapipe.order.sample_order import Order, SequentialOrder, ShuffledOrder

AnyLoader = DataLoader | TorchLoader | PrefetchedLoader


def from_torch(
    loader: torch.utils.data.DataLoader[Any] | DataLoader,
    *,
    device: str | torch.device = "auto",
    backend: Backend = "auto",
    seed: int | None = None,
    share_among_ranks: bool = False,
    on_error: OnError = "raise",
    memory_format: torch.memory_format = torch.channels_last,
    data: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_nbytes: int | None = None,
    defer: bool = True,
    reseed: bool = True,
) -> AnyLoader:
    """The same batches as `loader` gives, made by datapipe as far as it can see what they are made of.

    - A dataset whose files can be seen (torchvision's folders, `Subset` and `ConcatDataset` of them) with transforms that
      datapipe has: a `datapipe.DataLoader`. So too a `webdataset` pipeline over local shards that shuffles, decodes to PIL
      images, maps them by such transforms, and batches.
    - Such a dataset with transforms of your own among them, or a collate_fn for what is no tensor: torch's workers, in which
      datapipe decodes and does all that comes before.
    - A `TensorDataset`, or a `Subset` of one: whole batches gathered from its tensors, in the training process.
    - Any other dataset: its own code, unchanged, in torch's workers. `defer`: JPEGs that it opens by Pillow are decoded, cropped
      and resized together when a worker's fetch ends, by datapipe's engine; what is not recorded Pillow computes as before.
      `reseed`: torch's default generator, `random` and numpy are seeded for each sample by (seed, epoch, sample), so that the
      batches do not depend on the number of workers and a saved place is resumed exactly; without it torch seeds each worker.

    In each case batches come on `device` ("auto": this process's GPU, or the CPU where there is none), and the loader has
    `state_dict`, `load_state_dict` and `set_epoch`. Two are given back as they are, without these, and `seed` means nothing to
    them: any other IterableDataset, whose place nobody knows, and batch_size=None. `explain` says which part is done by
    whom, what was left out, and why.

    What the sampler decides it goes on deciding, with one exception: a `RandomSampler`, of which torch promises no order, is
    replaced by a shuffle by `seed` (None: drawn from the generator or torch.initial_seed() when the first pass begins), which
    resumes exactly. Ranks are those of a
    `DistributedSampler`; without one every rank takes all samples, as with torch, unless `share_among_ranks`: then they share
    them as with such a sampler, which is what Lightning and Accelerate do to torch's loaders. `num_workers` becomes as
    many threads, 0 the cores that there are, where the loader is ours. Images come in `memory_format` there, and
    worker_init_fn is not called, as there are no workers. `on_error` is about samples whose bytes are bad where the
    loader is ours, and about those whose `__getitem__` raises where that is the user's. A loader of ours is needed for
    `data`, what `datapipe convert` made of the folder that the dataset reads, to be read in its place, and `cache` and
    `cache_nbytes`, which are those of `DataLoader`.

    Raises OptionError for what is no loader, for a subclass of torch's with batches of its own, and for what such a loader
    does not do.
    """
    if isinstance(loader, (DataLoader, TorchLoader, PrefetchedLoader)):
        return loader
    taken = torchs_loader(loader)
    source = seed_source(seed, generator_of(taken) if seed is None else None)
    found = behind(taken, source, shares=share_among_ranks, takes_cut_files=on_error == "raise")
    if isinstance(found, Behind) and found.in_workers is None:
        as_theirs = functools.partial(as_torch_gives, memory_format=memory_format)
        ours = DataLoader(
            Dataset(
                found.index if data is None else converted_index(taken.dataset, data),
                original=None if isinstance(taken.dataset, IterableDataset) else Original.of(taken.dataset),
            ),
            transform=found.recipe,
            batch_transform=None if has_collate_fn(taken) else as_theirs,
            device=device,
            backend=backend,
            on_error=on_error,
            memory_format=memory_format,
            cache=cache,
            cache_nbytes=cache_nbytes,
            **found.arguments,
        )
        notes = ["worker_init_fn is not called"] if taken.worker_init_fn and taken.num_workers else []
        ours.origin = _origin(taken, "seen through to its files", *found.notes, *notes)
        return ours
    why = found.in_workers if isinstance(found, Behind) else found.reason
    _refuse(why, backend=(backend, "auto"), data=(data, None), cache=(cache, None))
    if on_error != "raise":
        _check_policy(taken, found, on_error, why, reseeds=reseed)
    resolve = resolve_device(device)
    defers = defer and not is_switched_off()
    kept = _kept(taken, found, source, shares=share_among_ranks, defers=defers, reseeds=reseed, on_error=on_error)
    return kept if resolve().type == "cpu" else prefetch(kept, resolve())


# -- torch's workers --------------------------------------------------------------------------------


def _kept(
    loader: TorchsLoader,
    found: Behind | Unseen,
    seed: SeedSource,
    *,
    shares: bool,
    defers: bool,
    reseeds: bool,
    on_error: OnError,
) -> TorchLoader | Any:
    if isinstance(found, Behind):
        key_of = functools.partial(keys_of, repeats=Repeats.of(found.index))
        kept = TorchLoader(
            loader,
            dataset=SampleDataset(found.index, found.recipe),
            open_source=functools.partial(
                _picked, loader=loader, key_of=key_of, shares=shares, original=Original.of(loader.dataset)
            ),
            seed=seed,
            fingerprint=found.index.fingerprint,
        )
        how = f"seen through to its files, which datapipe decodes in torch's workers, since {found.in_workers}"
        kept.origin = _origin(loader, how)
        return kept
    rows = None if has_collate_fn(loader) or loader.batch_sampler is None else tensor_rows(loader.dataset)
    if rows is not None:
        open_rows = functools.partial(_picked, loader=loader, key_of=picked_rows, shares=shares, shuffled=ShuffledRows)
        open_rows(Trail())  # raises for what cannot be shared
        kept = TorchLoader(loader, dataset=rows, open_source=open_rows, seed=seed, fingerprint=_name_of(loader.dataset))
        kept.origin = _origin(loader, "seen through to its tensors, of which whole batches are gathered")
        return kept
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return _as_it_is(loader, found.reason, shares=shares)
    open_source: Callable[[Trail], KeySource] = functools.partial(_given, loader=loader, reseeds=reseeds)
    if is_plain_shuffle(loader) or shares:
        of_picks: KeyOf = request_of_picks if reseeds else places_of
        open_source = functools.partial(_picked, loader=loader, key_of=of_picks, shares=shares)
        open_source(Trail())  # raises for what cannot be shared
    if callable(getattr(loader.dataset, "state_dict", None)):
        warnings.warn(
            f"{type(loader.dataset).__qualname__} has a state_dict of its own, which the loader's state does not hold; save "
            "and load it beside that",
            stacklevel=3,
        )
    own = defers or reseeds or on_error != "raise"
    dataset = DeferringDataset(loader.dataset, defers=defers, on_error=on_error) if own else loader.dataset
    kept = TorchLoader(
        loader,
        dataset=dataset,
        open_source=open_source,
        seed=seed,
        fingerprint=_name_of(loader.dataset),
        is_seeded=reseeds,
    )
    kept.origin = _origin(loader, f"not seen through: {found.reason}; torch's workers run it")
    return kept


def _as_it_is(loader: TorchsLoader, reason: str, *, shares: bool) -> TorchsLoader:
    if shares:
        raise OptionError(
            f"share_among_ranks=True: {reason}, so datapipe cannot say which samples are whose; "
            "leave it out, and let the dataset itself give each rank a part"
        )
    name = type(loader.dataset).__qualname__
    loader.origin = f"{name}: not seen through: {reason}; torch's loader as it is, without a place to save"
    loader.explanation = lines_about(loader, None)
    return loader


def _check_policy(loader: TorchsLoader, found: Behind | Unseen, on_error: OnError, why: str | None, *, reseeds: bool) -> None:
    """Raise OptionError where samples that raise cannot be left out: where they are not asked for one by one, with seeds."""
    if isinstance(found, Behind):
        _refuse(why, on_error=(on_error, "raise"))
    name = type(loader.dataset).__qualname__
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None or reads_batches(loader.dataset):
        raise OptionError(
            f"on_error={on_error!r}: {name} is not asked for samples one by one, so nobody can tell which one raised; "
            "leave it out, and catch the exception in the Dataset"
        )
    if on_error == "replace" and not reseeds:
        raise OptionError("on_error='replace' takes another sample by the seed of the bad one; leave reseed=False out")


def _given(trail: Trail, *, loader: TorchsLoader, reseeds: bool) -> GivenKeys:
    assert loader.batch_sampler is not None
    return GivenKeys(loader.batch_sampler, _global_batch(loader), resolve_rank(None, None), trail, reseeds)


def _picked(
    trail: Trail,
    *,
    loader: TorchsLoader,
    key_of: KeyOf,
    shares: bool,
    original: Original | None = None,
    shuffled: Callable[[int, int], Order] = ShuffledOrder,
) -> PickedKeys:
    """What a pass that begins now asks for; of a dataset that was seen through, if it is still as it was."""
    if original is not None:
        original.check_unchanged()
    num_samples = length_of(loader.dataset) or 0
    arguments = arguments_of(loader, None, shares=shares)
    rank = resolve_rank(arguments.get("rank"), arguments.get("world_size"))
    if "batch_sampler" in arguments:
        listed = SampledSource(arguments["batch_sampler"], None, rank, drop_last=False, num_samples=num_samples, trail=trail)
        return PickedKeys(listed, "sampler", key_of)
    batch_size, drop_last = arguments["batch_size"], arguments["drop_last"]
    if "shuffle" in arguments:
        order = shuffled(num_samples, 0) if arguments["shuffle"] else SequentialOrder(num_samples)
        return PickedKeys(Plan(order, batch_size, rank, Tail.DROP if drop_last else Tail.PAD), order.kind, key_of)
    sampler = sampler_of(loader)
    sampled = SampledSource(sampler, batch_size, rank, drop_last=drop_last, num_samples=num_samples, trail=trail)
    return PickedKeys(sampled, "sampler", key_of)


def _global_batch(loader: TorchsLoader) -> int:
    sampler = sampler_of(loader)
    replicas = sampler.num_replicas if isinstance(sampler, DistributedSampler) else 1
    return (getattr(loader.batch_sampler, "batch_size", None) or 1) * replicas


def _name_of(dataset: Any) -> str:
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__} {length_of(dataset)}"
    return hashlib.sha256(kind.encode()).hexdigest()[:16]


def _refuse(why: str | None, **arguments: tuple[object, object]) -> None:
    """Raise OptionError for the first argument that is not what it is by default; both are given by name."""
    for name, (value, default) in arguments.items():
        if value != default:
            raise OptionError(
                f"{name}={value!r}: the samples are made by torch's workers ({why}); "
                "leave it out, or use transforms and datasets that datapipe can see through"
            )


def _origin(loader: TorchsLoader, *parts: str) -> str:
    """What was taken over, and how."""
    told = list(parts)
    if not isinstance(loader.dataset, IterableDataset):
        replaced = ", replaced by a shuffle that resumes exactly" if is_plain_shuffle(loader) else ""
        told.append(f"{type(sampler_of(loader)).__qualname__}{replaced}")
    if not getattr(loader, "in_order", True):
        told.append("in_order=False is left out: batches come in order")
    return f"{type(loader.dataset).__qualname__}: {'; '.join(told)}"
