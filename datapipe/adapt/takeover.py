"""`from_torch`: a torch DataLoader taken over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from datapipe.adapt.sample_dataset import SampleDataset, keys_of
from datapipe.adapt.torch_loader import GivenKeys, KeySource, PickedKeys, TorchLoader
from datapipe.datasets import Seen, SeenStream, Unseen, see_through, webdataset_stream
from datapipe.errors import OptionError
from datapipe.loader import DataLoader, Dataset
from datapipe.loader.choice import Backend, resolve_device
from datapipe.loader.options import OnError
from datapipe.loader.sources import SampledSource
from datapipe.order import ShuffledOrder
from datapipe.plan import Plan, Rank, Tail
from datapipe.prefetching import PrefetchedLoader, prefetch
from datapipe.transforms import Recipe

AnyLoader = DataLoader | TorchLoader | PrefetchedLoader


def from_torch(
    loader: torch.utils.data.DataLoader[Any] | DataLoader,
    *,
    device: str | torch.device = "auto",
    backend: Backend = "auto",
    seed: int | None = None,
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
    replaced by a shuffle by `seed` (None: the generator's, or 0), which resumes exactly. Ranks are
    those of a `DistributedSampler`; without one every rank takes all samples, as with torch. `num_workers` becomes as many
    threads, 0 the cores that there are, where the loader is ours. Images come in `memory_format`. `on_error` other
    than "raise" needs a loader of ours.

    Raises OptionError for what is no loader, and for what such a loader does not do.
    """
    if isinstance(loader, (DataLoader, TorchLoader, PrefetchedLoader)):
        return loader
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise OptionError(
            f"from_torch takes a torch.utils.data.DataLoader, got a {type(loader).__module__}.{type(loader).__qualname__}; "
            "for a dataset: datapipe.DataLoader(dataset, ...), for other loaders: datapipe.prefetch(loader)"
        )
    seed = _seed_of(loader) if seed is None else seed
    stream = webdataset_stream(loader.dataset)
    if isinstance(stream, SeenStream) and (loader.batch_size is None) != (stream.batch_size is None):
        recipe = Recipe.of(stream.transform)
        if not recipe.rest:
            ours = DataLoader(
                Dataset(stream.index),
                transform=recipe,
                device=device,
                backend=backend,
                on_error=on_error,
                memory_format=memory_format,
                **_stream_arguments(loader, stream, seed),
            )
            ours.origin = f"{type(loader.dataset).__qualname__}: seen through to its shards"
            return ours
    seen: Seen | Unseen = see_through(loader.dataset) if loader.batch_sampler is not None else Unseen("batch_size=None")
    if isinstance(seen, Seen) and not seen.gives_tuples:
        seen = Unseen("its samples are dicts of PIL images, which the collate_fn is for")
    if isinstance(seen, Seen):
        recipe = Recipe.of(seen.transform)
        if not recipe.rest:
            ours = DataLoader(
                Dataset(seen.index),
                transform=recipe,
                device=device,
                backend=backend,
                on_error=on_error,
                memory_format=memory_format,
                **_arguments(loader, seed),
            )
            ours.origin = _origin(loader, "seen through to its files")
            return ours
    _refuse(on_error, backend)
    resolve = resolve_device(device)
    kept = _kept(loader, seen, seed)
    return kept if resolve().type == "cpu" else prefetch(kept, resolve())


# -- a loader of ours -------------------------------------------------------------------------------


def _arguments(loader: torch.utils.data.DataLoader[Any], seed: int) -> dict[str, Any]:
    """What torch's arguments are in ours."""
    collates = loader.collate_fn is not torch.utils.data.default_collate
    arguments: dict[str, Any] = {
        "num_workers": loader.num_workers or None,
        "collate_fn": loader.collate_fn if collates else None,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "seed": seed,
        "rank": 0,
        "world_size": 1,
    }
    if loader.prefetch_factor not in (None, 2):  # 2 is what torch takes where nothing is asked for
        arguments["prefetch_factor"] = loader.prefetch_factor * max(1, loader.num_workers)
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        return {**arguments, "batch_sampler": batches}
    sampler = batches.sampler
    arguments |= {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    if _is_plain_shuffle(sampler) or type(sampler) is SequentialSampler:
        return {**arguments, "shuffle": type(sampler) is RandomSampler}
    if isinstance(sampler, DistributedSampler):
        arguments |= {"rank": sampler.rank, "world_size": sampler.num_replicas}
    return {**arguments, "sampler": sampler}


def _sampler_of(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """What decides: the sampler behind torch's own batch sampler, or a batch sampler of the user's."""
    batches = loader.batch_sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def _stream_arguments(loader: torch.utils.data.DataLoader[Any], stream: SeenStream, seed: int) -> dict[str, Any]:
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


def _is_plain_shuffle(sampler: Any) -> bool:
    """Each sample once, in any order."""
    return type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)


def _seed_of(loader: torch.utils.data.DataLoader[Any]) -> int:
    generator = loader.generator or getattr(_sampler_of(loader), "generator", None)
    return generator.initial_seed() if isinstance(generator, torch.Generator) else 0


# -- torch's workers --------------------------------------------------------------------------------


def _kept(
    loader: torch.utils.data.DataLoader[Any], seen: Seen | Unseen, seed: int
) -> TorchLoader | Any:
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return loader
    if isinstance(seen, Seen):
        recipe = Recipe.of(seen.transform)
        kept = TorchLoader(
            loader,
            dataset=SampleDataset(seen.index, recipe, seed=seed),
            source=_picked(loader, seed, keys_of, len(seen.index)),
            seed=seed,
            fingerprint=seen.index.fingerprint,
            set_sampler_epoch=_sampler_epoch(loader),
        )
        why = f"seen through to its files; {recipe.rest_reason}, so torch's workers run it behind our decoding"
    else:
        assert loader.batch_sampler is not None
        source: KeySource = (
            _picked(loader, seed, lambda picks: picks.positions.tolist(), len(loader.dataset))  # type: ignore[arg-type]
            if _is_plain_shuffle(_sampler_of(loader))
            else GivenKeys(loader.batch_sampler, _global_batch(loader))
        )
        kept = TorchLoader(
            loader,
            dataset=loader.dataset,
            source=source,
            seed=seed,
            fingerprint=_name_of(loader.dataset),
            set_sampler_epoch=_sampler_epoch(loader),
        )
        why = f"not seen through: {seen.reason}; torch's workers run it"
    kept.origin = _origin(loader, why)
    return kept


def _picked(
    loader: torch.utils.data.DataLoader[Any], seed: int, key_of: Callable[[Any], list[Any]], num_samples: int
) -> PickedKeys:
    arguments = _arguments(loader, seed)
    rank = Rank(arguments["rank"], arguments["world_size"])
    if "batch_sampler" in arguments:
        listed = SampledSource(arguments["batch_sampler"], None, rank, drop_last=False, num_samples=num_samples)
        return PickedKeys(listed, "sampler", key_of)
    drop_last = arguments["drop_last"]
    if arguments.get("shuffle"):
        order = ShuffledOrder(num_samples, seed)
        tail = Tail.DROP if drop_last else Tail.PAD
        return PickedKeys(Plan(order, arguments["batch_size"], rank, tail), order.kind, key_of)
    sampled = SampledSource(_sampler_of(loader), arguments["batch_size"], rank, drop_last=drop_last, num_samples=num_samples)
    return PickedKeys(sampled, "sampler", key_of)


def _global_batch(loader: torch.utils.data.DataLoader[Any]) -> int:
    sampler = _sampler_of(loader)
    replicas = sampler.num_replicas if isinstance(sampler, DistributedSampler) else 1
    return (getattr(loader.batch_sampler, "batch_size", None) or 1) * replicas


def _sampler_epoch(loader: torch.utils.data.DataLoader[Any]) -> Callable[[int], None]:
    tell = getattr(_sampler_of(loader), "set_epoch", None)
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
    owner = _sampler_of(loader)
    shuffle = ", replaced by a shuffle that resumes exactly" if _is_plain_shuffle(owner) else ""
    return f"{type(loader.dataset).__qualname__}: {how}; {type(owner).__qualname__}{shuffle}"
