"""`from_torch`: take over a torch DataLoader."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.utils.data

from datapipe.adapt.facts import TakeoverSettings, facts_of
from datapipe.adapt.loaders import carry_attributes, generator_of
from datapipe.adapt.strategies import OTHER_KIND, STRATEGIES, lines_of_strategy
from datapipe.adapt.torch_loader import TorchLoader
from datapipe.adapt.workers import AnyLoader, moved_to_device
from datapipe.errors import OptionError
from datapipe.kernel.loader import Loader
from datapipe.kernel.options import OnError
from datapipe.kernel.prefetching import PrefetchedLoader
from datapipe.kernel.seeding import seed_source
from datapipe.kinds.images.choice import Backend
from datapipe.kinds.images.data import Images
from datapipe.remote_workers.settings import Workers, workers_or_none


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
    workers: Workers | None = None,
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

    `workers`: machines that make batches with this one, `datapipe.Workers(...)`. Where the Dataset's own code runs, it is sent
    there, with its `collate_fn` and `worker_init_fn` (`datapipe serve --allow-code`, or Ray), and here processes of datapipe's
    stand for torch's workers; in all of them `torch.utils.data.get_worker_info()` is None, except in `worker_init_fn`.

    Raises OptionError for an object that is not a loader, for a subclass of torch's with batches of its own, and for arguments
    that such a loader does not support.
    """
    if not isinstance(faithful, bool):
        raise OptionError(f"faithful is {faithful!r:.60}; pass True or False")
    if isinstance(loader, (Loader, TorchLoader, PrefetchedLoader)):
        return loader
    facts = facts_of(loader)
    settings = TakeoverSettings(
        device=device,
        backend=backend,
        seed=seed_source(seed, generator_of(facts.loader) if seed is None else None),
        on_error=on_error,
        shares=share_among_ranks,
        data=data,
        is_faithful=faithful,
        workers=workers_or_none(workers),
    )
    why, reasons = "", []
    for strategy in STRATEGIES:
        taken: Any = strategy.take(facts, settings, why)
        if not isinstance(taken, str):
            break
        reasons.append((strategy.name, taken))
        if strategy.says_why and taken != OTHER_KIND:
            why = taken
    vars(taken)["strategy_lines"] = lines_of_strategy(strategy.name, reasons, origin=taken.origin)
    result = moved_to_device(taken, settings) if isinstance(taken, TorchLoader) else taken
    if result is not loader:
        carry_attributes(loader, result)
    return result
