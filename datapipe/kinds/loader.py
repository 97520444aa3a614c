"""`DataLoader`: torch's arguments and contract for data of any kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
import torch.utils.data

from datapipe.errors import OptionError
from datapipe.kernel.calibration import arguments_to_measure
from datapipe.kernel.kind import Data
from datapipe.kernel.loader import Loader, check_arguments
from datapipe.kernel.options import OnError, Output, Shuffle
from datapipe.kernel.samplers import WeightedSampler
from datapipe.kinds.registry import open_data
from datapipe.remote_workers.choosing import AUTO, choose
from datapipe.remote_workers.settings import Workers, workers_or_none


class DataLoader(Loader):
    """Give batches as `torch.utils.data.DataLoader` would, from data that datapipe reads, decodes and augments itself.

    >>> loader = datapipe.DataLoader("shards/train", batch_size=64, shuffle=True, transform=[transforms.RandomResizedCrop(224)])
    >>> for images, labels in loader:          # (64, 3, 224, 224) uint8, and (64,) int64
    ...     train(images, labels)

    dataset: `Images`, a `Table`, or what `mix(...)` or `images.select(...)` returned: what a sample is. Or where they lie, which
      is recognised: a path, a glob pattern, the URL of an object store, the paths of one table; or a torch Dataset whose files
      can be seen (`ImageFolder`, `Subset`, `ConcatDataset`): for others there is `from_torch`.
    batch_size, sampler, batch_sampler, collate_fn, pin_memory, drop_last, timeout, worker_init_fn, generator, prefetch_factor:
      torch's; docs/loader.md says what each means here. multiprocessing_context, persistent_workers, pin_memory_device and
      in_order are accepted, and mean nothing: batches come in order, from threads.
    shuffle: True, of all samples with each other; or "windows", of samples in the same few shards, each shard being read once.
    num_workers: threads, from 8 on with a process each for images; None: the cores that this process may use; 0: the caller's
      thread.
    transform: for images, a list of transforms, or a Compose: datapipe's, those of torchvision and timm, and any callable, which
      is called with each image, as are all transforms after it. Without one, images come as they are stored.
    batch_transform: a function of a finished batch.
    device: where batches are delivered; "auto" is this rank's GPU, or the CPU if torch finds none.
    backend: for images "images_cpu", "dali", or `datapipe.Dali(...)` for DALI with settings of your own; for tables
      "tables_arrow" or "tables_cudf"; for clips "clips_cpu" or "clips_nvdec"; "auto": the one that is faster here.
      `datapipe.explain(loader)` says which, and why.
    seed: all shuffling and augmentation depend on it, the epoch and the sample id alone. None: `torch.initial_seed()` when the
      first pass begins, that of rank 0 on all ranks of a process group; or the seed of the state that is loaded.
    tail: "pad" (torch's way: the last batch is short, ranks get equally many samples), "drop", or "mask" (the last batch is
      filled up with repeats, and a further element, "real", bool, is False for them).
    on_error: "raise", "skip" (shorter batches, as many steps) or "replace" bad samples; see `bad_samples`.
    output: for images "tuple" of the fields, "dict" by their names and "id", or a dict's new names, {"image": "pixel_values"}.
    ranks: (rank, world_size); None: those of torch.distributed, or RANK and WORLD_SIZE, read at the first `len` or `iter`.
    workers: machines that decode images, clips, sound or conversations with this one, `datapipe.Workers(...)`: the same batches.
      With num_workers=0 they alone decode. "auto": those that DATAPIPE_WORKERS_AT names, or that a Ray cluster has room for, if
      this loader, which is measured for some seconds, is faster with them.

    Images are (b, 3, h, w), uint8 unless a transform converts them; labels int64. `Images` and `Table` say what else batches
    hold. A batch belongs to whoever holds it: datapipe never overwrites a delivered batch. Do not share the loader itself between
    threads; it pickles as its arguments. Raises OptionError for arguments that cannot be honoured, and what opening the data
    raises.
    """

    def __init__(
        self,
        dataset: Data | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | torch.utils.data.Dataset[Any],
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
        backend: Any = "auto",
        seed: int | None = None,
        tail: str | None = None,
        on_error: OnError = "raise",
        output: Output = "tuple",
        ranks: tuple[int, int] | None = None,
        workers: Workers | Literal["auto"] | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check_arguments(arguments)  # before anything is opened
        if workers != AUTO:
            workers_or_none(workers)
        data = open_data(dataset)
        if data is not dataset and data.own_transform is not None:  # a torch Dataset's
            if transform is not None:
                raise OptionError("dataset has a transform of its own, and transform= is given too; leave one of them out")
            data, transform = data.without_transform(), data.own_transform
        chosen = None
        if workers == AUTO:
            plain = arguments_to_measure(arguments, device=device, num_samples=max(1, len(data)))
            chosen = choose(lambda some: DataLoader(**{**plain, "workers": some}))
            arguments["workers"] = chosen.workers
        super().__init__(data, arguments, open_loader=DataLoader, transform=transform)
        if chosen is not None and self.elsewhere is not None:
            self.elsewhere.why = chosen.why
