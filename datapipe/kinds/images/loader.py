"""`DataLoader`: torch's arguments and contract for converted datasets, shards and image folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from datapipe.containers import open_index
from datapipe.core.errors import OptionError
from datapipe.core.observe import Observer, check_observer
from datapipe.datasets import Original, Unseen, see_through
from datapipe.fetch.files import open_files
from datapipe.fetch.remote import RemoteFiles, StoreFacts
from datapipe.fetch.row_groups import row_groups_of_windows
from datapipe.kernel.accelerators import accelerator
from datapipe.kernel.bad_samples import BadSample
from datapipe.kernel.iteration import BatchIterator
from datapipe.kernel.options import (
    SETTABLE,
    BoxesForm,
    LoaderOptions,
    OnError,
    Output,
    Shuffle,
    check_settable,
    parse_image_options,
)
from datapipe.kernel.ranks import resolve_device
from datapipe.kernel.samplers import WeightedSampler
from datapipe.kernel.seeding import Seed, seed_source
from datapipe.kernel.shown import refuse_position, shown_device, shown_loader
from datapipe.kernel.state import LoaderProgress
from datapipe.kernel.torch_compat import (
    EpochSetter,
    OwnBatches,
    SequentialEpochSetter,
    added_attributes,
    leave_random_state,
    names_of,
)
from datapipe.kinds.images.cache.locations import CacheOptions
from datapipe.kinds.images.choice import Backend, Choice
from datapipe.kinds.images.dataset import Dataset
from datapipe.kinds.images.fields import BatchFields
from datapipe.kinds.images.kept_images import CacheStats
from datapipe.kinds.images.kind import SamplePasses
from datapipe.order.plan import Tail
from datapipe.stores.location import is_url
from datapipe.stores.requests import apply_settings
from datapipe.stores.settings import Remote, remote_settings
from datapipe.transforms import Recipe


class DataLoader:
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
        arguments = {name: value for name, value in locals().items() if name != "self"}
        options = parse_image_options(arguments)
        seeding = Seed(seed_source(seed, generator))
        self._resolve_device = resolve_device(device)
        remote = remote_settings(remote)
        if isinstance(dataset, str) and is_url(dataset):
            apply_settings(remote)  # for the opening too
        self.dataset, transform = _open(dataset, transform)
        if fields is not None:
            self.dataset = self.dataset.with_fields(BatchFields.of(self.dataset.index, fields))
        self.recipe = Recipe.of(transform)
        if isinstance(sampler, WeightedSampler):
            sampler.check_fits(self.dataset)
        self.fields.check_recipe(self.recipe)
        self.fields.check_rename(options.rename)
        row_groups = row_groups_of_windows(len(self.fields.stored))
        cache_options = CacheOptions.of(cache, cache_nbytes)
        if cache_options is not None and not self.fields.has_image:
            raise OptionError("cache is for images, and batches have none; leave it out")
        if cache == "gpu" and (accelerator() is None or str(device).startswith("cpu")):
            raise OptionError(f"cache='gpu' keeps images on a GPU, and device is {shown_device(device)}; pass cache='ram'")
        self._passes = SamplePasses(
            self.dataset,
            files=open_files(self.dataset.index, row_groups=row_groups, remote=remote),
            recipe=self.recipe,
            progress=LoaderProgress(seeding, self.dataset.index.fingerprint, (rank, world_size)),
            cache=cache_options,
            device=self._resolve_device,
            open_loader=DataLoader,
        )
        self.origin = ""  # what `from_torch` took over, and how
        # Attributes that frameworks and scripts read from a torch DataLoader.
        setter = EpochSetter if shuffle else SequentialEpochSetter
        mixture = self.dataset.mixture
        num_samples = len(self.dataset) if mixture is None else sum(mixture.counts)
        self.sampler = setter(self._progress.epochs, num_samples) if sampler is None else sampler
        self.batch_size = batch_size
        self.drop_last = options.tail is Tail.DROP
        self.generator = generator
        self.persistent_workers = persistent_workers
        if options.shuffle == "windows":
            self.dataset.stored_order()
        self._apply(arguments, options)
        self._names = names_of(self)

    def _apply(self, arguments: dict[str, Any], options: LoaderOptions) -> None:
        """Use these arguments for passes that begin from now on. Raises OptionError, and changes nothing, if they do not fit."""
        self._passes.configure(arguments, options)
        self.options = options
        shown = {name: arguments[name] for name in SETTABLE} | {
            "num_workers": options.num_workers,
            "prefetch_factor": options.prefetch_factor,
            "worker_init_fn": arguments["worker_init_fn"] or leave_random_state,
        }
        vars(self).update(shown, _arguments=arguments)  # past `__setattr__`, which checks them from here on

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Torch's that may change take effect with the next pass; raises OptionError for other arguments."""
        arguments = vars(self).get("_arguments", {})
        if name not in arguments:
            super().__setattr__(name, value)
            return
        check_settable(name)
        changed = {**arguments, name: value}
        self._apply(changed, parse_image_options(changed))

    @property
    def _progress(self) -> LoaderProgress:
        return self._passes.progress

    _arguments: dict[str, Any]
    num_workers: int
    prefetch_factor: int
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None]

    def __repr__(self) -> str:
        size = self.batch_size if self._arguments["batch_sampler"] is None else None
        return shown_loader("DataLoader", self.dataset.shown, batch_size=size, device=self._arguments["device"])

    # -- torch's contract -----------------------------------------------------------------------

    __getitem__ = refuse_position

    def __iter__(self) -> BatchIterator:
        if self.dataset.original is not None:
            self.dataset.original.check_unchanged()
        passes = self._passes
        self._progress.check_still_alone(passes.num_steps)
        return BatchIterator(passes.begin, passes.num_steps, self._progress.epochs, self.worker_init_fn)

    def __len__(self) -> int:
        """Return batches per epoch on this rank; the same on all. Raises TypeError for a sampler without a length."""
        return self._passes.num_steps()

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_arguments, (self._arguments,), added_attributes(self)

    # -- epochs, state, observation ---------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one over this epoch. Without it epochs count up from 0.

        Also calls `set_epoch` of a `sampler` or `batch_sampler` of your own if it has one; at other times that is left
        to you, as with torch.
        """
        self._progress.epochs.set_epoch(epoch)
        own = self._arguments["sampler"] if self._arguments["batch_sampler"] is None else self.batch_sampler
        tell = getattr(own, "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch delivered: small, JSON-safe. After a pass: the beginning of the next epoch."""
        return self._passes.state().to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there with the next pass, on any number of ranks as long as batch_size x world_size is the same.

        A state taken after the last batch, before the pass ended, leaves nothing: the next pass is empty, and the one after it
        is over the next epoch.
        Raises StateError for a state that this loader would not continue exactly.
        """
        self._passes.resume(state)

    @property
    def observer(self) -> Observer:
        """The function to which stages are reported; `observe` sets it."""
        return self._passes.observer

    def observe(self, observer: Observer) -> None:
        """Report every stage of passes that begin from now on to `observer`."""
        check_observer(observer)
        self._passes.observe(observer)

    @property
    def seed(self) -> int | None:
        """The seed of order and augmentation; None until it is drawn, when the first pass begins."""
        return self._progress.seed.value

    @property
    def fields(self) -> BatchFields:
        """The fields that batches have."""
        return self.dataset.fields

    @property
    def batch_sampler(self) -> Iterable[list[int]]:
        """The batch sampler passed, or a stand-in as long as the loader, without positions."""
        own: Iterable[list[int]] | None = self._arguments["batch_sampler"]
        return OwnBatches(self) if own is None else own

    @property
    def device(self) -> torch.device:
        """The device on which batches are delivered."""
        return self._resolve_device()

    @property
    def choice(self) -> Choice:
        """The backend and the reason for it; chosen at the first access, on a GPU perhaps by measuring."""
        return self._passes.choice

    def decoder_device(self) -> str:
        """Return where images are decoded, according to DALI's graph: "gpu" or "cpu". Builds the graph if necessary.

        Raises BackendError if DALI cannot build it.
        """
        stage = self._passes.batch_maker().dali
        return "cpu" if stage is None else stage.decoder_device()

    @property
    def bad_samples(self) -> list[BadSample]:
        """The bad samples skipped or replaced, the latest 1,000."""
        return list(self._passes.bad_samples.latest)

    @property
    def cache_stats(self) -> CacheStats | None:
        """The cache's hits in this process, and what it holds; None without a cache."""
        cache = self._passes.cache()
        return None if cache is None else cache.stats()

    def store_facts(self) -> StoreFacts | None:
        """Return how samples are read from an object store at this moment; None for other data."""
        files = self._passes.files
        return files.facts() if isinstance(files, RemoteFiles) else None


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


def _from_arguments(arguments: dict[str, Any]) -> DataLoader:
    return DataLoader(**arguments)
