"""`from_torch`: take over a torch DataLoader."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

import torch
import torch.utils.data

from datapipe.adapt.asked import DEFAULTS, Asked
from datapipe.adapt.episodes import SeenEpisodes, see_episodes
from datapipe.adapt.introspection import Introspection, as_default_collate, introspect
from datapipe.adapt.loaders import (
    TorchDataLoader,
    carry_attributes,
    generator_of,
    has_collate_fn,
    inside_of_stages,
    unwrap_torch_loader,
)
from datapipe.adapt.torch_loader import TorchLoader
from datapipe.adapt.workers import AnyLoader, of_workers, origin_of, unchanged
from datapipe.datasets import Unseen, converted_index
from datapipe.errors import OptionError
from datapipe.kernel.loader import Loader
from datapipe.kernel.options import OnError
from datapipe.kernel.prefetching import PrefetchedLoader
from datapipe.kernel.seeding import SeedSource, seed_source
from datapipe.kinds.clips.data import Clips
from datapipe.kinds.images.choice import Backend
from datapipe.kinds.images.data import Images, of_torch_dataset
from datapipe.kinds.images.samples import ImageSettings
from datapipe.kinds.loader import DataLoader


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
    if not isinstance(faithful, bool):
        raise OptionError(f"faithful is {faithful!r:.60}; pass True or False")
    if isinstance(loader, (Loader, TorchLoader, PrefetchedLoader)):
        return loader
    asked = Asked(device, backend, on_error, share_among_ranks, data, faithful)
    result: Any
    if (inner := inside_of_stages(loader)) is not None:
        asked.refuse(_STAGES, "data", "backend", "on_error")
        result = unchanged(loader, inner, _STAGES, asked)
    else:
        taken = unwrap_torch_loader(loader)
        source = seed_source(seed, generator_of(taken) if seed is None else None)
        found = _seen(taken, source, asked)
        if isinstance(found, SeenEpisodes):
            parts = "datapipe reads its videos and tables", found.note
            result = _ours(taken, asked, found.data, *parts, batch_transform=found.as_collated, **found.arguments)
        elif isinstance(found, Introspection) and found.in_workers is None:
            result = _of_images(taken, found, asked)
        else:
            result = of_workers(loader, taken, found, source, asked)
    if result is not loader:
        carry_attributes(loader, result)
    return result  # type: ignore[no-any-return]


_STAGES = "its WebLoader has stages or epochs of its own, which run after its batches; in the dataset they could be seen"


def _seen(loader: TorchDataLoader, seed: SeedSource, asked: Asked) -> SeenEpisodes | Introspection | Unseen:
    """Return what datapipe can see of a loader's samples and may make of them, or why they are left to torch's workers."""
    found = introspect(
        loader,
        seed,
        shares=asked.shares,
        takes_cut_files=asked.on_error == "raise",
        draws_in_workers=not asked.reseeds or (loader.num_workers > 0 and not asked.differs(*DEFAULTS)),
    )
    if isinstance(found, Unseen):
        is_ours = not asked.is_faithful and not asked.differs("data")
        return (see_episodes(loader, seed, shares=asked.shares) if is_ours else None) or found
    if asked.is_faithful:
        return Unseen("faithful=True leaves its samples to them")
    if found.in_workers is not None and asked.defers and not found.recipe.saves_decoding:
        return Unseen(found.in_workers)  # to decode whole images, and no more, costs more than Pillow
    return found


# -- datapipe's loaders ------------------------------------------------------------------------------


def _of_images(loader: TorchDataLoader, found: Introspection, asked: Asked) -> DataLoader:
    images = _images_of(loader.dataset, found, asked.data)
    as_theirs = functools.partial(as_default_collate, memory_format=images.settings.memory_format)
    transforms = {"transform": found.recipe, "batch_transform": None if has_collate_fn(loader) else as_theirs}
    return _ours(loader, asked, images, "datapipe reads its files", *found.notes, **transforms, **found.arguments)


def _ours(loader: TorchDataLoader, asked: Asked, data: Images | Clips, *parts: str, **arguments: Any) -> DataLoader:
    """Return datapipe's loader in place of torch's. `parts`: what was taken over, and how."""
    ours = DataLoader(data, device=asked.device, backend=asked.backend, on_error=asked.on_error, **arguments)
    uncalled = ["worker_init_fn is not called"] if loader.worker_init_fn and loader.num_workers else []
    ours.origin = origin_of(loader, *parts, *uncalled)
    return ours


def _images_of(dataset: Any, found: Introspection, data: Any) -> Images:
    """Return the samples of a dataset that was seen, read from `data` if that is given."""
    if data is not None and not isinstance(data, Images):
        data = Images(data)
    settings = ImageSettings() if data is None else data.settings
    if data is not None and (data.mixture is not None or settings.fields is not None):
        what = "is a mixture" if data.mixture is not None else f"has fields={settings.fields}"
        raise OptionError(f"data={data!r:.100} {what}; the torch loader decides which samples come, and what is in them")
    is_same = data is None or data.index.fingerprint == found.index.fingerprint
    index = found.index if is_same else converted_index(dataset, data.index)
    return of_torch_dataset(dataset, index, dataclasses.replace(settings, fields=found.fields))
