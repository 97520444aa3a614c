"""`from_torch`: take over a torch DataLoader."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from datapipe.adapt.deferral.dataset import DeferringDataset, is_switched_off, reads_batches
from datapipe.adapt.deferral.device_decoding import DecodingByDali, choose_decoder
from datapipe.adapt.deferral.requests import request_of_picks
from datapipe.adapt.episodes import SeenEpisodes, see_episodes
from datapipe.adapt.explaining import lines_about
from datapipe.adapt.former import OF_FROM_TORCH, FormerSettings, Handling, with_former
from datapipe.adapt.introspection import Introspection, as_default_collate, introspect
from datapipe.adapt.keys import KeyOf, KeySource, SampleDataset, given_keys, keys_of, picked_keys, places_of, request_of_samples
from datapipe.adapt.loaders import (
    TorchDataLoader,
    carry_attributes,
    generator_of,
    has_collate_fn,
    inside_of_stages,
    is_plain_shuffle,
    length_of,
    sampler_of,
    unwrap_torch_loader,
)
from datapipe.adapt.number_rows import NumberRows, picked_rows
from datapipe.adapt.torch_loader import TorchLoader
from datapipe.adapt.whole_batches import GatheredRows, gathered_rows
from datapipe.core.deprecation import former_arguments
from datapipe.datasets import Original, Unseen, converted_index
from datapipe.errors import OptionError
from datapipe.index.concat import Repeats
from datapipe.kernel.loader import Loader
from datapipe.kernel.options import OnError
from datapipe.kernel.prefetching import PrefetchedLoader, prefetch
from datapipe.kernel.ranks import resolve_device
from datapipe.kernel.samplers import SamplerChecksum
from datapipe.kernel.seeding import SeedSource, seed_source
from datapipe.kinds.images.choice import Backend, Choice
from datapipe.kinds.images.data import Images, of_torch_dataset
from datapipe.kinds.images.samples import ImageSettings
from datapipe.kinds.loader import DataLoader
from datapipe.order.row_order import ShuffledRows

AnyLoader = Loader | TorchLoader | PrefetchedLoader


@former_arguments(OF_FROM_TORCH, with_former)
def from_torch(
    loader: torch.utils.data.DataLoader[Any] | Loader,
    *,
    device: str | torch.device = "auto",
    backend: Backend = "auto",
    seed: int | None = None,
    on_error: OnError = "raise",
    share_among_ranks: bool = False,
    data: str | os.PathLike[str] | Images | None = None,
    faithful: bool = False,
) -> AnyLoader:
    """Return a loader of the same batches as `loader`, made by datapipe as far as it can see how they are made.

    >>> loader = torch.utils.data.DataLoader(dataset, batch_size=256, shuffle=True, num_workers=8)
    >>> loader = datapipe.from_torch(loader)

    - A dataset whose files can be seen (torchvision's folders, `Subset` and `ConcatDataset` of them) with transforms that
      datapipe has: a `datapipe.DataLoader`. So too a `webdataset` pipeline over local shards that shuffles, decodes to PIL
      images, maps them by such transforms, and batches.
    - Such a dataset with transforms of your own after one that cuts or resizes, or a collate_fn that draws or is for samples that
      are not tensors: torch's workers, in which datapipe decodes and runs the transforms that come before.
    - A `LeRobotDataset` without image_transforms: a `datapipe.DataLoader` over `Clips`, whose batches are those of LeRobot's
      code and torch's collation. Some samples are made both ways and compared first.
    - A `TensorDataset`, a Hugging Face dataset of numbers or of lists of them, or a `Subset` of one: whole batches gathered from
      its tensors or columns, in the training process. So too a Dataset whose `__getitem__` only takes parts of arrays, such as
      windows of token ids: its code says which.
    - Any other dataset, and transforms of your own before any that cuts or resizes: their own code, unchanged, in torch's
      workers. JPEGs that it opens with Pillow are decoded, cropped and resized together when a worker's fetch ends, by
      datapipe's engine; Pillow computes as before what is not recorded. For a GPU where DALI is installed, and with
      `backend="dali"`, workers send such images as they are stored, and DALI makes them in the training process, if there is no
      collate_fn and each is only cut, flipped and normalised.
      Torch's default generator, `random` and numpy are seeded for each sample by (seed, epoch, sample), so that the batches do
      not depend on the number of workers and a saved place is resumed exactly.

    A collate_fn that may draw random numbers is called in torch's workers, or, without workers, when its batch is asked for; its
    draws are seeded by (seed, epoch, step), and the training's are left alone.

    `faithful=True`: torch's workers make all samples as without datapipe: by the dataset's own code and transforms, with images
    that Pillow decodes, and torch seeds each worker. Whole batches are gathered from tensors and columns all the same.

    In each case batches come on `device` ("auto": this process's GPU, or the CPU if there is none), and the loader has
    `state_dict`, `load_state_dict` and `set_epoch`. Three kinds are returned unchanged (for a GPU: only prefetched), without
    these, and ignore `seed`: any other IterableDataset, which has no place that could be saved, batch_size=None, and a
    webdataset.WebLoader with stages of its own. `explain` says which part runs where, what was left out, and why.
    Attributes that were set on `loader` are set on the result, unless it has one of that name: then a warning names them.

    A sampler goes on deciding the order, with one exception: a `RandomSampler`, for which torch promises no order, is
    replaced by a shuffle by `seed` (None: drawn from the generator or torch.initial_seed() when the first pass begins), which
    resumes exactly. Ranks are those of a `DistributedSampler`; without one every rank takes all samples, as with torch, unless
    `share_among_ranks`: then they share them as with such a sampler, as Lightning and Accelerate make torch's loaders do.

    If the result is a `datapipe.DataLoader`, `num_workers` becomes as many threads (0: the number of cores), and worker_init_fn
    is not called, as there are no workers. Only then may `data` be given, and `backend` only then and where images are deferred.
    There `on_error` is about samples whose bytes are bad; where the user's `__getitem__` is called, it is about those that it
    raises for. `data`: what `datapipe convert` made of the folder that the dataset reads, to be read in its place: its path, or
    `Images` of it; or `Images(loader.dataset, ...)` of the same dataset. These may have a `cache` and a `memory_format`.

    Raises OptionError for an object that is not a loader, for a subclass of torch's with batches of its own, and for arguments
    that such a loader does not support.
    """
    data, settings = data if isinstance(data, FormerSettings) else (data, None)
    cache = None if settings is None else settings.cache
    if not isinstance(faithful, (bool, Handling)):
        raise OptionError(f"faithful is {faithful!r:.60}; pass True or False")
    if isinstance(loader, (Loader, TorchLoader, PrefetchedLoader)):
        return loader
    if (inner := inside_of_stages(loader)) is not None:
        stages = "its WebLoader has stages or epochs of its own, which run after its batches; in the dataset they could be seen"
        _refuse(stages, data=(data, None), cache=(cache, None), backend=(backend, "auto"), on_error=(on_error, "raise"))
        return _unchanged(loader, inner, stages, resolve_device(device)(), shares=share_among_ranks)
    taken = unwrap_torch_loader(loader)
    source = seed_source(seed, generator_of(taken) if seed is None else None)
    may = faithful if isinstance(faithful, Handling) else Handling(not faithful, not faithful, not faithful)
    asks_for_ours = on_error != "raise" or backend != "auto" or (data, cache) != (None, None)
    found = introspect(
        taken,
        source,
        shares=share_among_ranks,
        takes_cut_files=on_error == "raise",
        draws_in_workers=not may.reseeds or (taken.num_workers > 0 and not asks_for_ours),
    )
    episodes = None
    if isinstance(found, Unseen) and may.sees and (data, cache) == (None, None):
        episodes = see_episodes(taken, source, shares=share_among_ranks)
    if isinstance(episodes, SeenEpisodes):
        clips = DataLoader(
            episodes.data,
            batch_transform=episodes.as_collated,
            device=device,
            backend=backend,
            on_error=on_error,
            **episodes.arguments,
        )
        clips.origin = _origin(taken, "datapipe reads its videos and tables", episodes.note, *_uncalled(taken))
        carry_attributes(loader, clips)
        return clips
    found = episodes or found
    if isinstance(found, Introspection) and not may.sees:
        found = Unseen("faithful=True leaves its samples to them")
    defers = may.defers and not is_switched_off()
    if isinstance(found, Introspection) and found.in_workers is not None and defers and not found.recipe.saves_decoding:
        found = Unseen(found.in_workers)  # to decode whole images, and no more, costs more than Pillow
    if isinstance(found, Introspection) and found.in_workers is None:
        images = _images_of(taken.dataset, found, data, settings)
        as_theirs = functools.partial(as_default_collate, memory_format=images.settings.memory_format)
        ours = DataLoader(
            images,
            transform=found.recipe,
            batch_transform=None if has_collate_fn(taken) else as_theirs,
            device=device,
            backend=backend,
            on_error=on_error,
            **found.arguments,
        )
        ours.origin = _origin(taken, "datapipe reads its files", *found.notes, *_uncalled(taken))
        carry_attributes(loader, ours)
        return ours
    why = found.in_workers if isinstance(found, Introspection) else found.reason
    _refuse(why, data=(data, None), cache=(cache, None))
    if on_error != "raise":
        _check_policy(taken, found, on_error, why, reseeds=may.reseeds)
    place, is_seen = resolve_device(device)(), isinstance(found, Introspection)
    rows = None if is_seen else gathered_rows(taken, tries=on_error == "raise" and backend == "auto")
    decoding = None if is_seen or rows is not None or not defers or _is_stream(taken) else choose_decoder(taken, backend, place)
    if decoding is None:
        _refuse(why if defers or not may.sees else "their images are not deferred", backend=(backend, "auto"))
    if isinstance(found, Unseen) and _is_stream(taken):
        return _unchanged(loader, taken, found.reason, place, shares=share_among_ranks)
    result: Any = _kept(
        taken, found, source, rows, shares=share_among_ranks, decoding=decoding, reseeds=may.reseeds, on_error=on_error
    )
    if decoding is not None and decoding.dali is not None:
        opened = DecodingByDali(decoding.dali, place)
        result = PrefetchedLoader(result, place, depth=max(2, decoding.dali.num_pipelines), open_mover=opened)
    elif place.type != "cpu":
        result = prefetch(result, place)
    carry_attributes(loader, result)
    return result  # type: ignore[no-any-return]


def _uncalled(loader: TorchDataLoader) -> list[str]:
    """Return a note about what of the user's is not called, as there are no workers."""
    return ["worker_init_fn is not called"] if loader.worker_init_fn and loader.num_workers else []


def _images_of(dataset: Any, found: Introspection, data: Any, former: ImageSettings | None) -> Images:
    """Return the samples of a dataset that was seen, read from `data` if that is given, by former settings or its own."""
    if data is not None and not isinstance(data, Images):
        data = Images(data)
    settings = ImageSettings() if data is None else data.settings
    if data is not None and (data.mixture is not None or settings.fields is not None):
        what = "is a mixture" if data.mixture is not None else f"has fields={settings.fields}"
        raise OptionError(f"data={data!r:.100} {what}; the torch loader decides which samples come, and what is in them")
    if former is not None:
        settings = dataclasses.replace(settings, cache=former.cache, memory_format=former.memory_format)
    is_same = data is None or data.index.fingerprint == found.index.fingerprint
    index = found.index if is_same else converted_index(dataset, data.index)
    return of_torch_dataset(dataset, index, dataclasses.replace(settings, fields=found.fields))


# -- torch's workers --------------------------------------------------------------------------------


def _gathering(
    loader: TorchDataLoader, rows: GatheredRows, open_source: Callable[[SamplerChecksum], KeySource], seed: SeedSource, what: str
) -> TorchLoader:
    """Return a loader whose batches are gathered whole. `what`: from what, for people."""
    return TorchLoader(
        loader,
        dataset=rows,
        open_source=open_source,
        seed=seed,
        fingerprint=_name_of(loader.dataset),
        origin=_origin(loader, f"datapipe gathers whole batches from {what}"),
    )


def _kept(
    loader: TorchDataLoader,
    found: Introspection | Unseen,
    seed: SeedSource,
    rows: GatheredRows | None,
    *,
    shares: bool,
    decoding: Choice | None,
    reseeds: bool,
    on_error: OnError,
) -> TorchLoader:
    if isinstance(found, Introspection):
        key_of: KeyOf = functools.partial(request_of_samples if reseeds else keys_of, repeats=Repeats.of(found.index))
        samples = SampleDataset(found.index, found.recipe)
        return TorchLoader(
            loader,
            dataset=DeferringDataset(samples, defers=False) if reseeds else samples,
            open_source=functools.partial(
                picked_keys, loader=loader, key_of=key_of, shares=shares, original=Original.of(loader.dataset)
            ),
            seed=seed,
            fingerprint=found.index.fingerprint,
            origin=_origin(loader, f"datapipe reads its files, in torch's workers, since {found.in_workers}"),
            is_seeded=reseeds or not (found.recipe.rest or has_collate_fn(loader)),
        )
    if isinstance(rows, NumberRows):
        open_rows = functools.partial(picked_keys, loader=loader, key_of=picked_rows, shares=shares, shuffled=ShuffledRows)
        open_rows(SamplerChecksum())  # raises if the samples cannot be shared
        return _gathering(loader, rows, open_rows, seed, "its columns" if isinstance(rows.columns, Mapping) else "its tensors")
    open_source: Callable[[SamplerChecksum], KeySource] = functools.partial(given_keys, loader=loader, reseeds=reseeds)
    if is_plain_shuffle(loader) or shares:
        key_of = picked_rows if rows is not None else request_of_picks if reseeds else places_of
        open_source = functools.partial(picked_keys, loader=loader, key_of=key_of, shares=shares)
        open_source(SamplerChecksum())  # raises if the samples cannot be shared
    if callable(getattr(loader.dataset, "state_dict", None)):
        warnings.warn(
            f"{type(loader.dataset).__qualname__} has a state_dict of its own, which the loader's state does not include; save "
            "and load it in addition",
            stacklevel=4,
        )
    if rows is not None:
        return _gathering(loader, rows, open_source, seed, f"the arrays that {rows.source} slices")
    defers, encodes = decoding is not None, decoding is not None and decoding.dali is not None
    own = defers or reseeds or on_error != "raise"
    return TorchLoader(
        loader,
        dataset=DeferringDataset(loader.dataset, defers=defers, on_error=on_error, encodes=encodes) if own else loader.dataset,
        open_source=open_source,
        seed=seed,
        fingerprint=_name_of(loader.dataset),
        origin=_origin(loader, f"left to torch's workers: {found.reason}"),
        is_seeded=reseeds,
        decoding=decoding,
    )


def _is_stream(loader: TorchDataLoader) -> bool:
    """Return whether torch's workers are not asked for the samples of batches by their keys."""
    return isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None


def _unchanged(loader: Any, inner: TorchDataLoader, reason: str, place: torch.device, *, shares: bool) -> AnyLoader:
    """Return the loader itself; for a GPU, one that copies its batches there. `inner`: torch's loader in it."""
    if shares:
        raise OptionError(
            f"share_among_ranks=True: {reason}, so datapipe cannot divide its samples among ranks; "
            "leave it out, and let the dataset itself give each rank a part"
        )
    result: AnyLoader = loader
    what = "the loader is unchanged, and has no state to save"
    if place.type != "cpu":
        result, what = prefetch(loader, place), f"its batches are copied to {place} ahead, and it has no state to save"
        carry_attributes(loader, result)
    origin = f"{type(inner.dataset).__qualname__}: left to torch: {reason}; {what}"
    vars(result).update(origin=origin, explanation=lines_about(inner, None))
    return result


def _check_policy(
    loader: TorchDataLoader, found: Introspection | Unseen, on_error: OnError, why: str | None, *, reseeds: bool
) -> None:
    """Raise OptionError if samples that raise cannot be left out: if they are not asked for one by one, with seeds."""
    if isinstance(found, Introspection):
        _refuse(why, on_error=(on_error, "raise"))
    name = type(loader.dataset).__qualname__
    if _is_stream(loader) or reads_batches(loader.dataset):
        raise OptionError(
            f"on_error={on_error!r}: {name} is not asked for samples one by one, so it is unknown which one raised; "
            "leave it out, and catch the exception in the Dataset"
        )
    if on_error == "replace" and not reseeds:
        raise OptionError("on_error='replace' takes another sample by the seed of the bad one; leave faithful=True out")


def _name_of(dataset: Any) -> str:
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__} {length_of(dataset)}"
    return hashlib.sha256(kind.encode()).hexdigest()[:16]


def _refuse(why: str | None, **arguments: tuple[object, object]) -> None:
    """Raise OptionError for the first argument that is not its default; both are passed by name."""
    for name, (value, default) in arguments.items():
        if value != default:
            raise OptionError(
                f"{name}={value!r}: torch's workers make the samples ({why}); "
                "leave it out, or use transforms and datasets that datapipe can see through"
            )


def _origin(loader: TorchDataLoader, *parts: str) -> str:
    """Return what was taken over, and how."""
    facts = list(parts)
    if not isinstance(loader.dataset, IterableDataset):
        replaced = ", replaced by a shuffle that resumes exactly" if is_plain_shuffle(loader) else ""
        facts.append(f"{type(sampler_of(loader)).__qualname__}{replaced}")
    if not getattr(loader, "in_order", True):
        facts.append("in_order=False is left out: batches come in order")
    return f"{type(loader.dataset).__qualname__}: {'; '.join(facts)}"
