"""`DataLoader`: torch's arguments and contract for converted datasets, shards and image folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from datapipe.containers import open_index
from datapipe.core.errors import OptionError
from datapipe.datasets import Original, Unseen, see_through
from datapipe.fetch.files import open_files
from datapipe.fetch.remote import RemoteFiles, StoreFacts
from datapipe.fetch.row_groups import row_groups_of_windows
from datapipe.kernel.accelerators import accelerator
from datapipe.kernel.loader import Loader
from datapipe.kernel.options import LoaderOptions, OnError, Output, Shuffle, one_of, parse_options
from datapipe.kernel.ranks import resolve_device
from datapipe.kernel.samplers import WeightedSampler
from datapipe.kernel.seeding import Seed, seed_source
from datapipe.kernel.shown import shown_device
from datapipe.kinds.images.cache.locations import CacheOptions
from datapipe.kinds.images.choice import Backend, Choice
from datapipe.kinds.images.collate import BoxesForm
from datapipe.kinds.images.dataset import Dataset
from datapipe.kinds.images.fields import BatchFields
from datapipe.kinds.images.kept_images import CacheStats
from datapipe.kinds.images.kind import ImageKind
from datapipe.stores.location import is_url
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote, remote_settings
from datapipe.transforms import Recipe


class DataLoader(Loader):
    """Give batches of decoded, augmented images and their labels, as `torch.utils.data.DataLoader` would.

    >>> loader = datapipe.DataLoader("shards/train", batch_size=64, shuffle=True, transform=[datapipe.RandomResizedCrop(224)])
    >>> for images, labels in loader:          # (64, 3, 224, 224) uint8, and (64,) int64
    ...     train(images, labels)

    `dataset`: a converted dataset, by its path or its URL in an object store; a directory, glob pattern or file of shards;
    an image folder; a `Dataset`, such as the result of `mix(...)` or `loader.dataset.select(...)`; or a torch Dataset whose files
    can be seen (`ImageFolder`, `Subset`, `ConcatDataset`): for others there is `from_torch`. Arguments up to `in_order` are
    torch's; docs/loader.md says what each means here. The others:

    shuffle: True, of all samples with each other; or "windows", of samples in the same few shards, each shard being read once.
    transform: a list of transforms, or a Compose: datapipe's, those of torchvision and timm, and any callable, which is
      called with each image, as are all transforms after it. Without one, images come as they are stored.
    batch_transform: a function of a finished batch.
    seed: all shuffling and augmentation depend on it, the epoch and the sample id alone. None: `torch.initial_seed()` when the
      first pass begins, that of rank 0 on all ranks of a process group; or the seed of the state that is loaded.
    tail: "pad" (torch's way: the last batch is short, ranks get equally many samples), "drop", or "mask" (the
        last batch is filled up with repeats, and a further element, "real", bool, is False for them).
    on_error: "raise", "skip" (shorter batches, as many steps) or "replace" bad samples; see `bad_samples`.
    fields: the fields of the dataset that batches have, in this order; None: all of a converted dataset, image and label
      of data that others wrote. Masks, boxes and further images are cut and flipped with the image.
    boxes: "list", a (k, 5) tensor for each sample, or "padded", one (b, k, 5) tensor, padding rows having the label -1.
    output: "tuple" of the fields or "dict" by their names and "id"; `rename` renames its keys.
    device: where batches are delivered; "auto" is this rank's GPU, or the CPU if torch finds none.
    backend: "images_cpu", "dali", `datapipe.Dali(...)` for DALI with settings of your own, or "auto": the one that
      is faster here. `datapipe.explain(loader)` says which, and why.
    cache: keep decoded images between epochs, after the leading transforms that draw nothing (Resize,
      CenterCrop, Pad): "ram", shared by the processes of a node until the last one ends; "disk", in the user's cache directory;
      a directory; or "gpu", in the memory of `device`, for images of one size that are only cropped and flipped after that.
      Pixels are the same with and without. Decodes on the CPU, but for "gpu".
    cache_nbytes: the cache's capacity in bytes; None: half of the memory, 80 % of the disk, or a quarter of the GPU's memory that
      is free. A full cache stays as it is. See `cache_stats`.
    remote: a `datapipe.Remote(...)`: how samples are read if the dataset is the URL of an object store.
    rank, world_size: by default those of torch.distributed, or RANK and WORLD_SIZE, read at the first `len`
      or `iter`.

    Images are (b, 3, h, w) in channels_last memory, uint8 unless a transform converts them; labels int64.
    A batch belongs to whoever holds it: datapipe never overwrites a delivered batch. Do not share the loader itself
    between threads; it pickles as its arguments. Raises OptionError for arguments that cannot be
    honoured, and what `datapipe.containers.open_index` raises.
    """

    def __init__(
        self,
        dataset: str | os.PathLike[str] | Dataset | torch.utils.data.Dataset[Any],
        batch_size: int = 1,
        shuffle: Shuffle | None = None,
        sampler: Iterable[int] | WeightedSampler | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: object = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        transform: object = None,
        batch_transform: Callable[..., Any] | None = None,
        device: str | torch.device = "auto",
        backend: Backend = "auto",
        seed: int | None = None,
        tail: str | None = None,
        on_error: OnError = "raise",
        fields: Iterable[str] | None = None,
        boxes: BoxesForm = "list",
        output: Output = "tuple",
        rename: Mapping[str, str] | None = None,
        memory_format: torch.memory_format = torch.channels_last,
        cache: str | os.PathLike[str] | None = None,
        cache_nbytes: int | None = None,
        remote: Remote | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        options = parse_image_options(arguments)  # before anything is opened
        seeding = Seed(seed_source(seed, generator))
        resolved = resolve_device(device)
        remote = remote_settings(remote)
        if isinstance(dataset, str) and is_url(dataset):
            apply_settings(remote)  # for the opening too
        self.dataset, transform = _open(dataset, transform)
        if fields is not None:
            self.dataset = self.dataset.with_fields(BatchFields.of(self.dataset.index, fields))
        self.recipe = Recipe.of(transform)
        self.fields.check_recipe(self.recipe)
        self.fields.check_rename(rename or {})
        row_groups = row_groups_of_windows(len(self.fields.stored))
        cache_options = CacheOptions.of(cache, cache_nbytes)
        if cache_options is not None and not self.fields.has_image:
            raise OptionError("cache is for images, and batches have none; leave it out")
        if cache == "gpu" and (accelerator() is None or str(device).startswith("cpu")):
            raise OptionError(f"cache='gpu' keeps images on a GPU, and device is {shown_device(device)}; pass cache='ram'")
        if shuffle == "windows":
            self.dataset.stored_order()
        images = self._images = ImageKind(
            self.dataset,
            files=open_files(self.dataset.index, row_groups=row_groups, remote=remote),
            recipe=self.recipe,
            cache=cache_options,
            device=resolved,
            open_loader=DataLoader,
        )
        super().__init__(images, arguments, options, remake=DataLoader, parse=parse_image_options, seed=seeding, device=resolved)

    @property
    def fields(self) -> BatchFields:
        """The fields that batches have."""
        return self.dataset.fields

    @property
    def choice(self) -> Choice:
        """The backend and the reason for it; chosen at the first access, on a GPU perhaps by measuring."""
        return self._images.choice

    def decoder_device(self) -> str:
        """Return where images are decoded, according to DALI's graph: "gpu" or "cpu". Builds the graph if necessary.

        Raises BackendError if DALI cannot build it.
        """
        return self._images.decoder_device(self._passes.settings())

    @property
    def cache_stats(self) -> CacheStats | None:
        """The cache's hits in this process, and what it holds; None without a cache."""
        cache = self._images.cache()
        return None if cache is None else cache.stats()

    def store_facts(self) -> StoreFacts | None:
        """Return how samples are read from an object store at this moment; None for other data."""
        files = self._images.files
        return files.facts() if isinstance(files, RemoteFiles) else None


def parse_image_options(arguments: Mapping[str, Any]) -> LoaderOptions:
    """Return the options of `DataLoader`'s arguments. Raises OptionError for arguments that make no sense, alone or together."""
    memory_format = arguments["memory_format"]
    if memory_format not in (torch.channels_last, torch.contiguous_format):
        raise OptionError(f"memory_format is {memory_format!r}; choose torch.channels_last or torch.contiguous_format")
    one_of(BoxesForm, arguments["boxes"], "boxes")
    return parse_options(arguments)


def _open(dataset: object, transform: object) -> tuple[Dataset, object]:
    """Return the dataset, and the transforms of its images: those given, or a torch Dataset's own."""
    if isinstance(dataset, Dataset):
        return dataset, transform
    if isinstance(dataset, (str, os.PathLike)):
        return Dataset(open_index(dataset)), transform
    seen = see_through(dataset)
    if isinstance(seen, Unseen):
        raise OptionError(
            f"dataset: {seen.reason}; pass the path of a converted dataset, of WebDataset shards or of an image folder, or for a "
            "Dataset of your own datapipe.from_torch(torch.utils.data.DataLoader(dataset, ...))"
        )
    if seen.transform is not None and transform is not None:
        raise OptionError("dataset has a transform of its own, and transform= is given too; leave one of them out")
    own = Recipe.of(seen.transform, input_kind="pil" if seen.transform is not None else "any")
    return Dataset(seen.index, original=Original.of(dataset)), own if transform is None else transform
