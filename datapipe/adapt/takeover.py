"""`from_torch`: a torch DataLoader taken over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import DistributedSampler, IterableDataset

from datapipe.adapt.arguments import arguments_of, is_plain_shuffle, sampler_of, seed_of, stream_arguments
from datapipe.adapt.sample_dataset import SampleDataset, keys_of
from datapipe.adapt.torch_loader import GivenKeys, KeySource, PickedKeys, TorchLoader
from datapipe.datasets import SeenStream, Unseen, see_through, webdataset_stream
from datapipe.errors import OptionError
from datapipe.joint import AnyIndex
from datapipe.loader import DataLoader, Dataset
from datapipe.loader.choice import Backend, resolve_device
from datapipe.loader.options import OnError
from datapipe.loader.ranks import resolve_rank
from datapipe.loader.sources import SampledSource
from datapipe.order import Order, SequentialOrder, ShuffledOrder
from datapipe.plan import Plan, Tail
from datapipe.prefetching import PrefetchedLoader, prefetch
from datapipe.transforms import Recipe

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
) -> AnyLoader:
    """The same batches as `loader` gives, made by datapipe as far as it can see what they are made of.

    - A dataset whose files can be seen (torchvision's folders, `Subset` and `ConcatDataset` of them) with transforms that
      datapipe has: a `datapipe.DataLoader`. So too a `webdataset` pipeline over local shards that shuffles, decodes to PIL
      images, maps them by such transforms, and batches.
    - Such a dataset with transforms of your own among them: torch's workers, in which datapipe decodes and does all that
      comes before the first of those.
    - Any other dataset: torch's workers, as they are.

    In each case batches come on `device` ("auto": this process's GPU, or the CPU where there is none), and the loader has
    `state_dict`, `load_state_dict` and `set_epoch`, but for an IterableDataset, whose place nobody knows. `explain` says
    which part is done by whom, and why.

    What the sampler decides it goes on deciding, with one exception: a `RandomSampler`, of which torch promises no order, is
    replaced by a shuffle by `seed` (None: the generator's, or 0), which resumes exactly. Ranks are those of a
    `DistributedSampler`; without one every rank takes all samples, as with torch, unless `share_among_ranks`: then they share
    them as with such a sampler, which is what Lightning and Accelerate do to torch's loaders. `num_workers` becomes as
    many threads, 0 the cores that there are, where the loader is ours. Images come in `memory_format`. `on_error` other than
    "raise" needs a loader of ours.

    Raises OptionError for what is no loader, and for what such a loader does not do.
    """
    if isinstance(loader, (DataLoader, TorchLoader, PrefetchedLoader)):
        return loader
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise OptionError(
            f"from_torch takes a torch.utils.data.DataLoader, got a {type(loader).__module__}.{type(loader).__qualname__}; "
            "for a dataset: datapipe.DataLoader(dataset, ...), for other loaders: datapipe.prefetch(loader)"
        )
    seed = seed_of(loader) if seed is None else seed
    found = _behind(loader, seed, shares=share_among_ranks)
    if isinstance(found, Behind) and not found.recipe.rest:
        ours = DataLoader(
            Dataset(found.index),
            transform=found.recipe,
            device=device,
            backend=backend,
            on_error=on_error,
            memory_format=memory_format,
            **found.arguments,
        )
        ours.origin = _origin(loader, "seen through to its files")
        return ours
    _refuse(on_error, backend)
    resolve = resolve_device(device)
    kept = _kept(loader, found, seed, shares=share_among_ranks)
    return kept if resolve().type == "cpu" else prefetch(kept, resolve())


@dataclass(frozen=True, slots=True)
class Behind:
    """What a loader reads and does, and the arguments that say the same to ours."""

    index: AnyIndex
    recipe: Recipe
    arguments: dict[str, Any]


def _behind(loader: torch.utils.data.DataLoader[Any], seed: int, *, shares: bool) -> Behind | Unseen:
    stream = webdataset_stream(loader.dataset)
    if isinstance(stream, SeenStream):
        recipe = Recipe.of(stream.transform, input_kind="pil")
        batches_once = (loader.batch_size is None) != (stream.batch_size is None)
        if batches_once and not recipe.rest:  # torch's workers would not know how to divide what we decode
            return Behind(stream.index, recipe, stream_arguments(loader, stream, seed))
    if loader.batch_sampler is None:
        return Unseen("batch_size=None, or a stream of the user's")
    seen = see_through(loader.dataset)
    if isinstance(seen, Unseen):
        return seen
    if not seen.gives_tuples:
        return Unseen("its samples are dicts of PIL images, which the collate_fn is for")
    return Behind(seen.index, Recipe.of(seen.transform, input_kind="pil"), arguments_of(loader, seed, shares=shares))


# -- torch's workers --------------------------------------------------------------------------------


def _kept(loader: torch.utils.data.DataLoader[Any], found: Behind | Unseen, seed: int, *, shares: bool) -> TorchLoader | Any:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return loader
    if isinstance(found, Behind):
        kept = TorchLoader(
            loader,
            dataset=SampleDataset(found.index, found.recipe, seed=seed),
            source=_picked(loader, seed, keys_of, len(found.index), shares=shares),
            seed=seed,
            fingerprint=found.index.fingerprint,
            set_sampler_epoch=_sampler_epoch(loader),
        )
        why = f"seen through to its files; {found.recipe.rest_reason}, so torch's workers run it behind our decoding"
    else:
        assert loader.batch_sampler is not None
        source: KeySource
        if is_plain_shuffle(sampler_of(loader)) or shares:
            num_samples = len(loader.dataset)  # type: ignore[arg-type]
            source = _picked(loader, seed, lambda picks: picks.positions.tolist(), num_samples, shares=shares)
        else:
            source = GivenKeys(loader.batch_sampler, _global_batch(loader))
        kept = TorchLoader(
            loader,
            dataset=loader.dataset,
            source=source,
            seed=seed,
            fingerprint=_name_of(loader.dataset),
            set_sampler_epoch=_sampler_epoch(loader),
        )
        why = f"not seen through: {found.reason}; torch's workers run it"
    kept.origin = _origin(loader, why)
    return kept


def _picked(
    loader: torch.utils.data.DataLoader[Any], seed: int, key_of: Callable[[Any], list[Any]], num_samples: int, *, shares: bool
) -> PickedKeys:
    arguments = arguments_of(loader, seed, shares=shares)
    rank = resolve_rank(arguments.get("rank"), arguments.get("world_size"))
    if "batch_sampler" in arguments:
        listed = SampledSource(arguments["batch_sampler"], None, rank, drop_last=False, num_samples=num_samples)
        return PickedKeys(listed, "sampler", key_of)
    batch_size, drop_last = arguments["batch_size"], arguments["drop_last"]
    if "shuffle" in arguments:
        order: Order = ShuffledOrder(num_samples, seed) if arguments["shuffle"] else SequentialOrder(num_samples)
        return PickedKeys(Plan(order, batch_size, rank, Tail.DROP if drop_last else Tail.PAD), order.kind, key_of)
    sampled = SampledSource(sampler_of(loader), batch_size, rank, drop_last=drop_last, num_samples=num_samples)
    return PickedKeys(sampled, "sampler", key_of)


def _global_batch(loader: torch.utils.data.DataLoader[Any]) -> int:
    sampler = sampler_of(loader)
    replicas = sampler.num_replicas if isinstance(sampler, DistributedSampler) else 1
    return (getattr(loader.batch_sampler, "batch_size", None) or 1) * replicas


def _sampler_epoch(loader: torch.utils.data.DataLoader[Any]) -> Callable[[int], None]:
    tell = getattr(sampler_of(loader), "set_epoch", None)
    return tell if callable(tell) else lambda epoch: None


def _name_of(dataset: Any) -> str:
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__} {len(dataset)}"
    return hashlib.sha256(kind.encode()).hexdigest()[:16]


def _refuse(on_error: OnError, backend: Backend) -> None:
    if on_error != "raise" or backend != "auto":
        asked = f"on_error={on_error!r}" if on_error != "raise" else f"backend={backend!r}"
        raise OptionError(
            f"{asked}: the samples are made by torch's workers, which have code of yours to run; "
            "leave it out, or use transforms and datasets that datapipe can see through"
        )


def _origin(loader: torch.utils.data.DataLoader[Any], how: str) -> str:
    owner = sampler_of(loader)
    shuffle = ", replaced by a shuffle that resumes exactly" if is_plain_shuffle(owner) else ""
    return f"{type(loader.dataset).__qualname__}: {how}; {type(owner).__qualname__}{shuffle}"
